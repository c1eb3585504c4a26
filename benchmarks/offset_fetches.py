"""Compares the time of an OffsetFetch, whose offset is in ZooKeeper, with the time of one
transaction of the same ZooKeeper: python benchmarks/offset_fetches.py [COUNT]

The program starts a broker with its own ZooKeeper. Each of COUNT rounds has three steps: an
OffsetFetch of one partition; an OffsetCommit of this partition, which needs at least one ZooKeeper
transaction; and a multi that only checks a node, the smallest transaction that ZooKeeper writes to
its disk. The program sends the multi to ZooKeeper by its own session. It prints the median of each
step, and the ratio of the OffsetFetch to the multi. If an OffsetFetch only reads, this ratio
depends little on the disk.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kazoo.client  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from integration_tests.broker import PybrokerProcess
from integration_tests.committer import Committer
from integration_tests.wire_client import Connection, create_topic
from pybroker.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)

VERSION = 7
TOPIC = "t"
GROUP = "g"
WARM_UP = 50


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(broker: PybrokerProcess, count: int) -> None:
    topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=GROUP, topics=topics)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(Connection(broker.bootstrap))
        create_topic(connection, TOPIC)
        committer = stack.enter_context(
            contextlib.closing(Committer(broker.bootstrap, GROUP, TOPIC))
        )
        committer.commit({0: 1})
        zookeeper = kazoo.client.KazooClient(_zookeeper(broker))
        zookeeper.start()
        stack.callback(zookeeper.stop)

        def fetch() -> None:
            answer = connection.ask(VERSION, request, OffsetFetchResponse)
            assert answer.error_code == 0
            assert answer.topics[0].partitions[0].error_code == 0

        def multi() -> None:
            transaction = zookeeper.transaction()
            transaction.check("/controller_epoch", version)
            transaction.commit()

        version = zookeeper.get("/controller_epoch")[1].version
        works: dict[str, Callable[[], object]] = {
            "OffsetFetch": fetch,
            "OffsetCommit": lambda: committer.commit({0: 1}),
            "empty multi": multi,
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for number in range(WARM_UP + count):
            for name, work in works.items():
                seconds = timed(work)
                if number >= WARM_UP:
                    times[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, seconds in medians.items():
        print(f"{name:12} p50 {seconds * 1000:7.2f} ms")
    print(f"OffsetFetch / empty multi: {medians['OffsetFetch'] / medians['empty multi']:.2f}")


def _zookeeper(broker: PybrokerProcess) -> str:
    """Return the address of the broker's own ZooKeeper, which the broker writes into its log."""
    line = next(line for line in broker.log_text.splitlines() if "] INFO zookeeper 127" in line)
    return line.split(" zookeeper ")[1].split()[0]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        broker = PybrokerProcess(Path(folder))
        try:
            broker.start()
            measure(broker, count)
        finally:
            broker.close()


if __name__ == "__main__":
    main()
