"""Measures the start time of a broker, its memory when idle, and its stop time.

A broker is started five times in each of three situations: with its embedded ZooKeeper on empty
data, again on the same data, and beside a ZooKeeper that already runs. The program prints the
median and the range in seconds, and the resident memory in MB of the broker and of its children
(its ZooKeeper).

Brokers with 200 and 2,000 partitions are stopped three times each. The stop time is measured from
SIGTERM to the end of the process. All partitions have received a record since the broker's start.
The stopped broker runs alone, or it is one of three brokers that all have a replica of each
partition and each lead a third of the partitions. `python benchmarks/start_time.py stop` runs only
this part.

`python benchmarks/start_time.py partitions [N]` starts brokers of ours and of Apache Kafka with N
partitions (default 5,000, in ten topics, ten records in each), in turns, after clean stops. It
prints for each start the seconds from the start of the process until a Metadata response has a
leader for every partition, and the processor time of the broker until then; at the end the medians
and the ratios. Needs Java and the jars that `mvn` brings. With `--ours` it leaves out Apache Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.racing import lifecycle, loads, processes
from benchmarks.racing.contestants import APACHE, OURS, Contestant, ContestantFactory, rotated
from integration_tests.apache import ApacheZooKeeper
from pybroker.client import Admin, NewTopic, Producer
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from pybroker.testing import Cluster

RUNS = 5
STOPS = 3
PARTITIONS = 5_000
TOPICS = 10
STARTED = re.compile(r"\[KafkaServer id=\d+\] started")


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in listed.split()]


def one_start(*arguments: str) -> tuple[float, float, float]:
    """Start a broker with these arguments, and stop it. Return the seconds until it served
    requests, its memory in MB, and the memory of its children in MB."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pybroker", "start", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        if not any(STARTED.search(line) for line in broker.stdout):
            raise SystemExit("the broker ended without the log line that it has started")
        seconds = time.monotonic() - began
        own = resident_mb(broker.pid)
        others = sum(resident_mb(child) for child in children(broker.pid))
        broker.send_signal(signal.SIGTERM)
        broker.stdout.read()
    return seconds, own, others


def report(what: str, start: Callable[[int], tuple[float, float, float]]) -> None:
    results = [start(run) for run in range(RUNS)]
    seconds, own, others = zip(*results, strict=True)
    print(
        f"{what:34} {statistics.median(seconds):5.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"
        f"   broker {statistics.median(own):5.1f} MB   children {statistics.median(others):6.1f} MB"
    )


async def create(bootstrap: str, partitions: int, replicas: int) -> None:
    async with Admin(bootstrap) as admin:
        for result in await admin.create_topics([NewTopic("t", partitions, replicas)]):
            result.check()


async def lead_as_assigned(bootstrap: str) -> None:
    """Elect the preferred leaders. A broker that was stopped then leads its partitions again."""
    async with Admin(bootstrap) as admin:
        for error in (await admin.elect_leaders()).values():
            if error is not None:
                raise error


async def fill(bootstrap: str, partitions: int) -> None:
    """Write one record to each partition of the topic."""
    async with Producer(bootstrap) as producer:
        sent = [await producer.send("t", bytes(100), partition=each) for each in range(partitions)]
        for each in sent:
            await each


def report_stops(brokers: int, partitions: int) -> None:
    seconds = []
    options = {"zookeeper.session.timeout.ms": "30000", "replica.lag.time.max.ms": "30000"}
    with Cluster(brokers, config=options) as cluster:
        asyncio.run(create(cluster.bootstrap, partitions, brokers))
        for _ in range(STOPS):
            cluster.wait_until_in_sync("t")
            asyncio.run(lead_as_assigned(cluster.bootstrap))
            asyncio.run(fill(cluster.bootstrap, partitions))
            cluster.wait_until_in_sync("t")
            leaving = cluster.ids[0]
            began = time.monotonic()
            cluster.terminate(leaving)
            seconds.append(time.monotonic() - began)
            cluster.restart(leaving)
    what = f"stop of one of {brokers}, {partitions} partitions"
    print(
        f"{what:34} {statistics.median(seconds):5.2f} s ({min(seconds):.2f}-{max(seconds):.2f})",
        flush=True,
    )


async def starts() -> None:
    with tempfile.TemporaryDirectory() as base:
        report("embedded ZooKeeper, fresh data", lambda run: one_start("--data", f"{base}/{run}"))
        report("embedded ZooKeeper, second start", lambda _: one_start("--data", f"{base}/0"))
        zookeeper = EmbeddedZooKeeper(f"{base}/zookeeper")
        await zookeeper.start()
        try:
            loop = asyncio.get_running_loop()

            def beside(run: int) -> tuple[float, float, float]:
                return one_start(
                    "--data", f"{base}/x{run}", "--zookeeper", f"{zookeeper.connect}/r{run}"
                )

            await loop.run_in_executor(None, report, "ZooKeeper running already", beside)
        finally:
            await zookeeper.stop()


def start_in_turns(names: Sequence[str], partitions: int) -> None:
    """Print the start times of brokers with this number of partitions, one row a start."""
    each = partitions // TOPICS
    topics = [f"many-{number}" for number in range(TOPICS)]
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    loads.allow_files(4 * partitions)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starts-")))
        zookeeper = stack.enter_context(contextlib.closing(ApacheZooKeeper(folder / "zookeeper")))
        zookeeper.start()
        field = ContestantFactory(folder, zookeeper.connect, {}, itertools.count(1))
        contestants: dict[str, Contestant] = {}
        for name in names:
            contestant = stack.enter_context(contextlib.closing(field.contestant(name)))
            contestant.start()
            for topic in topics:
                contestant.create([topic], each)
                contestant.wait_for_leaders([topic], each)
            lifecycle.append(contestant, topics, each)
            contestant.stop()
            contestants[name] = contestant
        for run in range(RUNS):
            for name in rotated(names, run):
                seconds = lifecycle.seconds_until_led(contestants[name], topics, each)
                cpu = processes.cpu_seconds(contestants[name].pid)
                contestants[name].stop()
                figures[name].append((seconds, cpu))
                print(f"{name:14} {seconds:6.2f} s   processor time {cpu:6.2f} s", flush=True)
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in figures.items()
    }
    for name, (seconds, cpu) in medians.items():
        print(f"median of {name}: {seconds:.2f} s, processor time {cpu:.2f} s")
    if len(names) > 1:
        ours, apaches = medians[OURS], medians[APACHE]
        print(f"ratio: {ours[0] / apaches[0]:.2f}, processor time {ours[1] / apaches[1]:.2f}")


def main() -> None:
    if "partitions" in sys.argv:
        numbers = [int(word) for word in sys.argv if word.isdigit()]
        names = [OURS] if "--ours" in sys.argv else [OURS, APACHE]
        start_in_turns(names, numbers[0] if numbers else PARTITIONS)
        return
    if "stop" not in sys.argv:
        asyncio.run(starts())
    for brokers in (1, 3):
        for partitions in (200, 2_000):
            report_stops(brokers, partitions)


if __name__ == "__main__":
    main()
