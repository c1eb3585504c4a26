"""Measures how long three brokers take until they are ready, and to hand over the leaderships of
one broker.

The program starts five clusters, one after the other, each with its own ZooKeeper and empty data.
It prints the median and the range of three durations, in seconds. `ready` is the time until every
broker knows all brokers. Then one broker leads 1,000 partitions with replication factor 3, and is
stopped by SIGTERM. `handover` is the time until other brokers lead the partitions, and `stop` the
time until the process of the stopped broker has ended. Run the program with `python
benchmarks/cluster_times.py`.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from pybroker.testing import Cluster

RUNS: Final = 5
PARTITIONS: Final = 1_000
TOPIC: Final = "handed-over"
_DONE: Final = "controlled shutdown done"


def one_run() -> tuple[float, float, float]:
    begun = time.monotonic()
    with Cluster() as cluster:
        ready = time.monotonic() - begun
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[2, 3, 1]] * PARTITIONS)
        admin.create_topics([topic])[TOPIC].result(60)
        cluster.wait_until_in_sync(TOPIC)
        begun = time.monotonic()
        stopping = threading.Thread(target=cluster.terminate, args=(2,))
        stopping.start()
        while _DONE not in cluster.log_text(2):
            time.sleep(0.005)
        handover = time.monotonic() - begun
        stopping.join()
        return ready, handover, time.monotonic() - begun


def line(name: str, seconds: Sequence[float]) -> str:
    return (
        f"{name:<9} {statistics.median(seconds):5.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
    )


def main() -> None:
    runs = [one_run() for _ in range(RUNS)]
    for name, seconds in zip(("ready", "handover", "stop"), zip(*runs, strict=True), strict=True):
        print(line(name, seconds))


if __name__ == "__main__":
    main()
