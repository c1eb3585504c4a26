"""Measures OffsetCommit requests per second over 50 connections, each with one request in flight,
for pybroker's two offset stores (zookeeper, kafka) and for Apache Kafka 3.9.1 (apache): python
benchmarks/offset_commits.py [SECONDS] [CONTESTANT...].

There are two loads. In the first, all connections commit for one group, each for its own partition,
so that one coordinator does all the work. In the second, each connection commits for its own group,
and the groups are spread over the 50 partitions of __consumer_offsets. Requests are encoded before
the measurement; the client needs about 20 us for each request. The last two figures of a line are
the CPU time per request in microseconds, first of the broker, then of its ZooKeeper. The speed of
the disk matters: both ZooKeeper servers sync every transaction, while the logs are not synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from integration_tests.apache import KAFKA_JAVA_OPTIONS, ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.committer import Committer
from integration_tests.process import processes_using
from integration_tests.wire_client import Connection, create_topic, frame_of
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

CONNECTIONS = 50
VERSION = 8
WARM_UP_S = 3.0
TOPIC = "t"
OFFSETS = {"offsets.topic.num.partitions": "50", "offsets.topic.replication.factor": "1"}


@dataclass
class Run:
    """The results of all connections of one load: the time of each request in seconds, and the
    number of failed requests."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0


class Client(asyncio.Protocol):
    """A connection that sends the next request when the previous one is answered, until the time
    `until`. Requests that are answered after the time `since` count; times are those of
    `time.perf_counter`."""

    def __init__(self, frames: list[bytes], run: Run, until: float, since: float) -> None:
        self._frames = frames
        self._run = run
        self._until = until
        self._since = since
        self._next = 0
        self._sent_at = 0.0
        self._received = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4 + struct.unpack_from(">i", self._received)[0]:
            return
        now = time.perf_counter()
        if now > self._since:
            self._run.seconds.append(now - self._sent_at)
        if (
            self._received[-4:-2] != b"\0\0"
        ):  # the error code precedes two sections of tagged fields
            code = struct.unpack(">h", self._received[-5:-3])[0]
            self._run.failed += code != 0
        self._received = b""
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exception: Exception | None) -> None:
        self.done.set_result(None)

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._frames[self._next])
        self._next = (self._next + 1) % len(self._frames)


def frames(group: str, partition: int) -> list[bytes]:
    made = []
    for offset in range(200):
        part = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        frame = frame_of(VERSION, request, 1, "bench")
        made.append(struct.pack(">i", len(frame)) + frame)
    return made


async def load(bootstrap: str, groups: list[str], seconds: float) -> Run:
    host, _, port = bootstrap.rpartition(":")
    run = Run()
    since = time.perf_counter() + WARM_UP_S
    loop = asyncio.get_running_loop()
    clients = []
    for number, group in enumerate(groups):
        client = Client(frames(group, number), run, since + seconds, since)
        await loop.create_connection(lambda client=client: client, host, int(port))
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    return run


def cpu_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


@contextlib.contextmanager
def contestant(name: str) -> Iterator[tuple[Broker, list[psutil.Process]]]:
    """Start the broker of this contestant with a topic, and its ZooKeeper, for the `with` block.
    Yield the broker, and the processes of its ZooKeeper."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder)
        broker: Broker
        if name == "apache":
            broker = ApacheKafka(path, overrides=OFFSETS, java_options=KAFKA_JAVA_OPTIONS)
        else:
            broker = PybrokerProcess(path, overrides={**OFFSETS, "offsets.storage": name})
        stack.callback(broker.close)
        broker.start()
        with Connection(broker.bootstrap) as connection:
            create_topic(connection, TOPIC, partitions=CONNECTIONS)
        others = [
            each
            for each in processes_using(path)
            if "java" in each.name() and each.pid != broker.process.pid
        ]
        yield broker, others


def measure(name: str, seconds: float) -> None:
    with contestant(name) as (broker, zookeepers):
        process = [psutil.Process(broker.process.pid)]
        for what, groups in {
            "one group": ["g"] * CONNECTIONS,
            "50 groups": [f"g{number}" for number in range(CONNECTIONS)],
        }.items():
            for group in set(groups):
                with contextlib.closing(Committer(broker.bootstrap, group, TOPIC)) as committer:
                    committer.commit(dict.fromkeys(range(CONNECTIONS), 0))
            begun = time.perf_counter()
            before, zookeeper_before = cpu_s(process), cpu_s(zookeepers)
            run = asyncio.run(load(broker.bootstrap, groups, seconds))
            elapsed = time.perf_counter() - begun
            took = sorted(run.seconds)
            count = len(took)
            share = 1e6 / (count / seconds * elapsed)
            p50, p99, longest = took[count // 2], took[count * 99 // 100], took[-1]
            print(
                f"{name:10} {what:10} {count / seconds:8.0f}/s  p50 {p50 * 1000:6.1f} ms"
                f"  p99 {p99 * 1000:6.1f} ms  max {longest * 1000:6.1f} ms  failed {run.failed}"
                f"  cpu {(cpu_s(process) - before) * share:5.0f}"
                f" + {(cpu_s(zookeepers) - zookeeper_before) * share:5.0f} us",
                flush=True,
            )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
    for name in sys.argv[2:] or ["zookeeper", "kafka", "apache"]:
        measure(name, seconds)


if __name__ == "__main__":
    main()
