"""Measures the speed at which a follower catches up with its leader.

    python benchmarks/follower_copy.py [--megabytes N] [--partitions P] [--batch-kib K]

The program starts two brokers, kills one of them, and writes N megabytes to the other. Then it
starts the killed broker again, and waits until both log directories have the same number of bytes.
It prints megabytes per second from the first copied byte to the last one. Both brokers and this
program share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from pybroker.client import Admin, NewTopic, Producer
from pybroker.testing.cluster import Cluster

TOPIC = "copied"
MEGABYTE = 1_000_000
_LOOK_S = 0.005


def size(log_dir: Path) -> int:
    """Return the number of bytes of the topic's records in the log directory `log_dir`."""
    return sum(path.stat().st_size for path in log_dir.glob(f"{TOPIC}-*/*.log"))


async def create(bootstrap: str, partitions: int) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(TOPIC, assignments=dict.fromkeys(range(partitions), (1, 2)))]
        )


async def write(bootstrap: str, total_bytes: int, partitions: int, batch_kib: int) -> None:
    value = bytes(10_000)
    async with Producer(bootstrap, acks=1, batch_size=batch_kib * 1024, linger_ms=5) as producer:
        for number in range(total_bytes // len(value)):
            await producer.send(TOPIC, value, partition=number % partitions)


def copy(cluster: Cluster, total_bytes: int) -> tuple[int, float]:
    """Start broker 2 again, and wait until its log directory has `total_bytes` of records. Return
    the number of bytes that it copied after the first ones were seen, and the seconds that this
    took."""
    cluster.restart(2)
    begun, found = 0.0, 0
    while (copied := size(cluster.log_dir(2))) < total_bytes:
        if copied and not found:
            begun, found = time.monotonic(), copied
        time.sleep(_LOOK_S)
    assert found, "the copy was too fast to measure; use more --megabytes"
    return total_bytes - found, time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch-kib", type=int, default=64)
    options = parser.parse_args()
    with Cluster(2) as cluster:
        asyncio.run(create(cluster.bootstrap, options.partitions))
        cluster.kill(2)
        asyncio.run(
            write(
                cluster.bootstrap,
                options.megabytes * MEGABYTE,
                options.partitions,
                options.batch_kib,
            )
        )
        total_bytes = size(cluster.log_dir(1))
        copied, seconds = copy(cluster, total_bytes)
        megabytes = copied / MEGABYTE
        print(f"{megabytes:.0f} MB in {seconds:.2f} s: {megabytes / seconds:.0f} MB/s")


if __name__ == "__main__":
    main()
