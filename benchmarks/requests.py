"""Measures the cost of requests: requests per second, and the broker's CPU time per request.

    python benchmarks/requests.py [HOST:PORT PID ...] [--seconds S] [--partitions N]
                                  [--rounds N]

PID is the broker's process; its CPU time is read from /proc. Without arguments, the program starts
a broker for the run. With several brokers, every step runs against each broker in turn, and the
last column is the ratio of its CPU time to that of the first broker. Only figures of the same run
can be compared.

Every second round measures the brokers in reverse order. The reason: the broker that is measured
second pays for writing the changed pages of the first broker to the disk. This doubles the CPU time
per batched request, even if both brokers have the same code. A figure is the mean of all rounds,
with the lowest and the highest value.

The steps `batched`, `unbatched`, `fetch` and `poll` use 8 connections with 4 requests in flight on
each. `batched` is Produce with acks=all and one batch of 100 records of 100 B. `unbatched` is
Produce with one such record. `fetch` reads responses of 1 MiB. `poll` fetches at the log end
without waiting. `wake` is the time from the sending of a Produce to the arrival of its record at a
waiting consumer, 1,000 times.

The requests are Produce version 7 and Fetch version 11. The topic `bench` is created if it does not
exist.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pybroker.records.builder import BatchBuilder
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_request
from pybroker.wire.headers import RequestHeader, encode_request_header
from pybroker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pybroker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pybroker.wire.schema import Message

CONNECTIONS = 8
UNDER_WAY = 4
VERSIONS = {ApiKey.PRODUCE: 7, ApiKey.FETCH: 11, ApiKey.METADATA: 4}
TOPIC = "bench"


@dataclass(frozen=True)
class Target:
    """A broker to measure: its address, and the id of its process."""

    address: tuple[str, int]
    pid: int

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def cpu_seconds(self) -> float:
        with Path(f"/proc/{self.pid}/stat").open(encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    requests_per_second: float
    cpu_us: float


def framed(key: ApiKey, request: Message) -> bytes:
    """Return the bytes of a request, with its size field and its header."""
    api, version = APIS[key], VERSIONS[key]
    header = encode_request_header(RequestHeader(key, version, 1, "bench"), 1)
    body = header + encode_request(api, version, request)
    return struct.pack(">i", len(body)) + body


def produce_frame(
    partition: int, records: int, value: bytes, *, topic: str = TOPIC, acks: int = -1
) -> bytes:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(int(time.time() * 1000), None, value, ())
    data = PartitionProduceData(index=partition, records=builder.build())
    part = TopicProduceData(name=topic, partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[part])
    return framed(ApiKey.PRODUCE, request)


def fetch_frame(
    partition: int, offset: int, *, max_bytes: int, max_wait_ms: int = 0, topic: str = TOPIC
) -> bytes:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    return framed(ApiKey.FETCH, request)


def ask(connection: socket.socket, frame: bytes) -> bytes:
    """Send `frame`, a request, and return the response without its size field."""
    connection.sendall(frame)
    return receive(connection)


def receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)


def make_topic(target: Target) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    with target.connect() as connection:
        for _ in range(3):
            ask(connection, framed(ApiKey.METADATA, request))


def end_of_log(target: Target, partition: int) -> int:
    """Return the partition's log end offset. The function appends one record, whose response
    contains the offset."""
    with target.connect() as connection:
        answer = ask(connection, produce_frame(partition, 1, b"x"))
    position = 4 + 4 + 2 + len(TOPIC) + 4 + 4
    error, offset = struct.unpack_from(">hq", answer, position)
    if error:
        raise RuntimeError(f"the broker answered Produce with error code {error}")
    return int(offset) + 1


class Answers:
    """Sends a request on one connection, and counts the complete responses in the received
    bytes."""

    def __init__(self, connection: socket.socket, request: bytes) -> None:
        self.connection = connection
        self._request = request
        self._missing = 0
        self._prefix = b""

    def send(self, count: int) -> None:
        self.connection.sendall(self._request * count)

    def count(self, data: memoryview) -> int:
        """Return how many responses end within `data`, the bytes that were received next."""
        ended, position = 0, 0
        while position < len(data):
            if self._missing:
                step = min(self._missing, len(data) - position)
                self._missing -= step
                position += step
                ended += self._missing == 0
                continue
            step = min(4 - len(self._prefix), len(data) - position)
            self._prefix += bytes(data[position : position + step])
            position += step
            if len(self._prefix) == 4:
                (self._missing,) = struct.unpack(">i", self._prefix)
                self._prefix = b""
        return ended


def load(
    target: Target, frames: Sequence[bytes], seconds: float, under_way: int = UNDER_WAY
) -> Cost:
    """Send one of `frames` again and again on each of 8 connections, with `under_way` requests in
    flight, for `seconds` seconds. Return the cost."""
    selector = selectors.DefaultSelector()
    connections = []
    for number in range(CONNECTIONS):
        answers = Answers(target.connect(), frames[number % len(frames)])
        connections.append(answers)
        selector.register(answers.connection, selectors.EVENT_READ, answers)
    buffer = memoryview(bytearray(4 * 1024 * 1024))
    cpu, start, done = target.cpu_seconds(), time.monotonic(), 0
    for answers in connections:
        answers.send(under_way)
    while time.monotonic() - start < seconds:
        for key, _ in selector.select(1):
            answers = key.data
            ended = answers.count(buffer[: answers.connection.recv_into(buffer)])
            if ended:
                done += ended
                answers.send(ended)
    elapsed, used = time.monotonic() - start, target.cpu_seconds() - cpu
    for answers in connections:
        answers.connection.close()
    selector.close()
    return Cost(done / elapsed, used / done * 1e6)


def wake_up_times(target: Target, partition: int, count: int) -> list[float]:
    """Return `count` times from the sending of a record to its arrival at a waiting consumer, in
    microseconds, sorted."""
    offset = end_of_log(target, partition)
    frame = produce_frame(partition, 1, b"v" * 100)
    times = []
    with target.connect() as producer, target.connect() as consumer:
        for number in range(count):
            wanted = fetch_frame(
                partition, offset + number, max_bytes=1_000_000, max_wait_ms=10_000
            )
            consumer.sendall(wanted)
            time.sleep(0.001)
            start = time.perf_counter()
            producer.sendall(frame)
            receive(consumer)
            times.append((time.perf_counter() - start) * 1e6)
            receive(producer)
    return sorted(times)


def steps(target: Target, partitions: int) -> dict[str, list[bytes]]:
    """Return the requests of each step: step -> one request for each partition."""
    numbers = range(partitions)
    ends = [end_of_log(target, partition) for partition in numbers]
    value = b"v" * 100
    return {
        "batched": [produce_frame(partition, 100, value) for partition in numbers],
        "unbatched": [produce_frame(partition, 1, value) for partition in numbers],
        "fetch": [fetch_frame(partition, 0, max_bytes=1024 * 1024) for partition in numbers],
        "poll": [fetch_frame(n, end, max_bytes=1024 * 1024) for n, end in enumerate(ends)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("brokers", nargs="*", metavar="HOST:PORT PID")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        targets = []
        for address, pid in zip(options.brokers[::2], options.brokers[1::2], strict=True):
            host, _, port = address.rpartition(":")
            targets.append(Target((host, int(port)), int(pid)))
        measure(targets or [stack.enter_context(own_broker())], options)


@contextlib.contextmanager
def own_broker() -> Iterator[Target]:
    """Start a broker on a free port, with a temporary data directory, for the `with` block."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "pybroker", "start", "--port", "0", "--data", data]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            port = 0
            for line in broker.stdout:
                if found := re.search(r"bound to 127\.0\.0\.1:(\d+)", line):
                    port = int(found.group(1))
                if "started" in line:
                    break
            try:
                yield Target(("127.0.0.1", port), broker.pid)
            finally:
                broker.terminate()
                broker.stdout.read()


def measure(targets: Sequence[Target], options: argparse.Namespace) -> None:
    for target in targets:
        make_topic(target)
    for name in steps(targets[0], options.partitions):
        costs: dict[Target, list[Cost]] = {target: [] for target in targets}
        for number in range(options.rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                # Requests are made anew for each step: a poll contains the current log end offset.
                frames = steps(target, options.partitions)[name]
                costs[target].append(load(target, frames, options.seconds))
        first = statistics.mean(cost.cpu_us for cost in costs[targets[0]])
        for target in targets:
            used = [cost.cpu_us for cost in costs[target]]
            rate = statistics.mean(cost.requests_per_second for cost in costs[target])
            print(
                f"{name:10} {target.address[1]:6} {rate:9.0f} requests/s "
                f"{statistics.mean(used):7.1f} us CPU each ({min(used):.1f}-{max(used):.1f})"
                f"  x{statistics.mean(used) / first:.2f}",
                flush=True,
            )
    for target in targets:
        times = wake_up_times(target, 0, 1000)
        print(f"{'wake':10} {target.address[1]:6} p50 {times[500]:.0f} us  p99 {times[990]:.0f} us")


if __name__ == "__main__":
    main()
