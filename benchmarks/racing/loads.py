"""The loads that clients put on a broker. Each function runs one load and returns its result.

A load gets a running contestant and a topic. Other modules decide how often, in which order and
against which broker a load runs.
"""

from __future__ import annotations

import random
import resource
import select
import socket
import statistics
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.racing import librdkafka, processes
from benchmarks.racing.contestants import Contestant
from benchmarks.racing.librdkafka import ClientFailed, Consumer, Producer
from benchmarks.requests import ask, fetch_frame, framed, load, produce_frame
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import MetadataRequest

VALUES: Final = 10_000
CONNECTIONS: Final = 8
MEGABYTE: Final = 1_000_000
GIGABYTE: Final = 1_000_000_000
RATE: Final = 1000
"""The rate of the latency loads: messages per second."""

_FETCH_HEAD: Final = struct.Struct(">iihii")  # correlation, throttle, error, session, topics
# A partition in a Fetch response of version 11: partition, error, high watermark, last stable and
# log start offset, aborted transactions, preferred read replica, size of the records.
_PARTITION_HEAD: Final = struct.Struct(">ihqqqiii")
_SETTLE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Throughput:
    """The throughput of a stream of values. MB and GB count the bytes of the values before
    compression; the CPU seconds are the broker's."""

    mb_per_second: float
    cpu_seconds_per_gb: float


@dataclass(frozen=True)
class Latency:
    """The p50, p99 and p99.9 of a latency, in milliseconds."""

    p50: float
    p99: float
    p999: float


@dataclass(frozen=True)
class Requests:
    per_second: float
    per_cpu_second: float


def values(size: int) -> list[bytes]:
    """Return VALUES values of `size` bytes, as typical services write them: JSON lines of words and
    numbers. The values are the same in every run. Lz4 compresses them to about half their size."""
    source = random.Random(size)
    words = [
        "".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(3, 9)))
        for _ in range(400)
    ]
    made = []
    for _ in range(VALUES):
        text = f'{{"id":{source.getrandbits(40)}'
        while len(text) < size:
            text += f',"{source.choice(words)}":"{source.choice(words)} {source.getrandbits(20)}"'
        made.append(text[:size].encode())
    return made


def throughput(contestant: Contestant, cpu: float, started: float, size: int) -> Throughput:
    """Return the throughput of `size` bytes that were processed from the time `started`
    (time.perf_counter) until now. `cpu` is the contestant's CPU time at `started`."""
    elapsed = time.perf_counter() - started
    used = processes.cpu_seconds(contestant.pid) - cpu
    return Throughput(size / elapsed / MEGABYTE, used / size * GIGABYTE)


def produce(
    contestant: Contestant,
    topic: str,
    messages: Sequence[bytes],
    count: int,
    *,
    codec: str,
    acks: str,
) -> Throughput:
    """Send `count` messages with librdkafka, and wait until all are acknowledged. The values are
    those of `messages`, in turn."""
    options = {"compression_codec": codec, "acks": acks, "linger_ms": 5}
    with Producer(contestant.bootstrap, topic, messages, **options) as producer:
        producer.send(1)
        producer.flush()
        before = contestant.end_offset(topic)
        cpu, started = processes.cpu_seconds(contestant.pid), time.perf_counter()
        producer.send(count)
        producer.flush()
        result = throughput(contestant, cpu, started, count * len(messages[0]))
    written = contestant.end_offset(topic) - before
    if written != count:
        raise ClientFailed(
            f"{contestant.name}: expected {count} messages in the log, got {written}"
        )
    return result


def consume(
    contestant: Contestant, topic: str, offset: int, count: int, *, size: int, passes: int
) -> Throughput:
    """Read `count` messages of `size` bytes from `offset` on, `passes` times, each time with a new
    consumer of librdkafka."""
    done = 0
    cpu, started = processes.cpu_seconds(contestant.pid), time.perf_counter()
    for _ in range(passes):
        with Consumer(contestant.bootstrap, topic, offset) as consumer:
            done += consumer.skip(count)
    return throughput(contestant, cpu, started, done * size)


def produce_by_program(
    contestant: Contestant, topic: str, size: int, count: int, *, codec: str, acks: str
) -> Throughput:
    """Send `count` messages of `size` bytes by `rdkafka_performance`. Where that program is not
    installed, librdkafka is called with the same messages and settings."""
    program = librdkafka.program()
    if program is None:
        messages = [librdkafka.program_value(size)] * VALUES
        return produce(contestant, topic, messages, count, codec=codec, acks=acks)
    words = ("-P", "-s", str(size), "-z", codec, "-a", "-1" if acks == "all" else acks)
    linger = ("-X", f"linger.ms={librdkafka.PROGRAM_LINGER_MS}")
    return _run_program(contestant, program, topic, size, count, *words, *linger)


def consume_by_program(contestant: Contestant, topic: str, size: int, count: int) -> Throughput:
    """Read `count` messages of `size` bytes from the beginning of the topic by
    `rdkafka_performance`, or by librdkafka as `produce_by_program` does."""
    program = librdkafka.program()
    if program is None:
        return consume(contestant, topic, 0, count, size=size, passes=1)
    return _run_program(contestant, program, topic, size, count, "-C", "-o", "beginning")


def _run_program(
    contestant: Contestant, program: str, topic: str, size: int, count: int, *words: str
) -> Throughput:
    cpu = processes.cpu_seconds(contestant.pid)
    rate = librdkafka.run_program(program, contestant.bootstrap, topic, count, *words)
    used = processes.cpu_seconds(contestant.pid) - cpu
    return Throughput(rate * size / MEGABYTE, used / (count * size) * GIGABYTE)


def requests(
    contestant: Contestant, topic: str, *, records: int, under_way: int, seconds: float
) -> Requests:
    """Send Produce requests with acks=all for `seconds` seconds over 8 connections, each to its own
    partition. Each request has a batch of `records` records; each connection has `under_way`
    requests in flight."""
    frames = [
        produce_frame(partition, records, b"v" * 100, topic=topic)
        for partition in range(CONNECTIONS)
    ]
    with contestant.target.connect() as connection:
        for frame in frames:
            ask(connection, frame)
    cost = load(contestant.target, frames, seconds, under_way)
    return Requests(cost.requests_per_second, 1e6 / cost.cpu_us)


def percentiles(seconds: Sequence[float]) -> Latency:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000

    return Latency(at(0.5), at(0.99), at(0.999))


def end_to_end(contestant: Contestant, topic: str, *, acks: int, seconds: float) -> Latency:
    """Return the latency from the sending of a record to its arrival at a waiting consumer, by
    plain sockets. This thread sends at fixed times, whether responses have arrived or not. So a
    pause of the broker delays every record that is sent during the pause."""
    frame = produce_frame(0, 1, b"v" * 100, topic=topic, acks=acks)
    with contestant.target.connect() as producer, contestant.target.connect() as consumer:
        ask(producer, frame)
        offset = contestant.end_offset(topic)
        reader = _Arrivals(consumer, topic, offset, records_bytes(frame, topic))
        count = int((seconds + _SETTLE_SECONDS) * RATE)
        sent: list[float] = []
        begun = time.perf_counter()
        while len(reader.arrived) < count:
            now = time.perf_counter()
            wait = 1.0
            if len(sent) < count:
                wait = begun + len(sent) / RATE - now
                if wait <= 0:
                    sent.append(now)
                    producer.sendall(frame)
                    continue
            ready, _, _ = select.select([producer, consumer], [], [], wait)
            if consumer in ready:
                reader.read()
            if producer in ready:
                producer.recv(65536)
            if now - begun > count / RATE + 30:
                raise ClientFailed(f"{contestant.name}: some records did not reach the consumer")
    skipped = int(_SETTLE_SECONDS * RATE)
    arrived = reader.arrived[:count]
    return percentiles([b - a for a, b in zip(sent, arrived, strict=True)][skipped:])


class _Arrivals:
    """Stores when the records of a topic's partition 0 arrive at a consumer, in order. The
    connection always has a Fetch in flight. Each batch must have one record, and `batch_bytes`
    bytes."""

    def __init__(
        self, connection: socket.socket, topic: str, offset: int, batch_bytes: int
    ) -> None:
        self.arrived: list[float] = []
        self._connection = connection
        self._topic = topic
        self._offset = offset
        self._data = bytearray()
        self._batch_bytes = batch_bytes
        self._ask()

    def _ask(self) -> None:
        offset = self._offset + len(self.arrived)
        self._connection.sendall(
            fetch_frame(0, offset, max_bytes=MEGABYTE, max_wait_ms=500, topic=self._topic)
        )

    def read(self) -> None:
        """Read the bytes that have arrived. Raises ClientFailed if the broker has closed the
        connection."""
        part = self._connection.recv(MEGABYTE)
        if not part:
            raise ClientFailed("the broker closed the consumer's connection")
        self._data += part
        if len(self._data) < 4:
            return
        (size,) = struct.unpack_from(">i", self._data)
        if len(self._data) < 4 + size:
            return
        now = time.perf_counter()
        self.arrived += [now] * self._records(memoryview(self._data)[4:])
        self._data = bytearray()
        self._ask()

    def _records(self, frame: memoryview) -> int:
        position = _FETCH_HEAD.size + 2 + len(self._topic) + 4
        size: int
        _, error, _, _, _, aborted, _, size = _PARTITION_HEAD.unpack_from(frame, position)
        if error or aborted > 0:
            raise ClientFailed(f"the broker answered Fetch with error code {error}")
        return size // self._batch_bytes


def records_bytes(frame: bytes, topic: str) -> int:
    """Return the size in bytes of the batch at the end of `frame`, a Produce request for `topic`
    from `produce_frame`."""
    position = frame.index(topic.encode()) + len(topic) + 4 + 4
    size: int = struct.unpack_from(">i", frame, position)[0]
    return size


def end_to_end_by_client(
    contestant: Contestant, topic: str, *, acks: str, seconds: float
) -> Latency:
    """Return the latency from the sending of a record to its arrival, as `end_to_end` does, but
    with clients of librdkafka (linger.ms 0). A thread consumes."""
    count = int((seconds + _SETTLE_SECONDS) * RATE)
    sent: list[float] = []
    arrived: list[float] = []
    offset = contestant.end_offset(topic)
    deadline = time.monotonic() + count / RATE + 30

    def receive() -> None:
        while len(arrived) < count + 1 and time.monotonic() < deadline:
            if (moment := consumer.next_arrival(100)) is not None:
                arrived.append(moment)

    message = [b"v" * 100]
    options = {"linger_ms": 0, "acks": acks, "socket_nagle_disable": "true"}
    with (
        Consumer(contestant.bootstrap, topic, offset, socket_nagle_disable="true") as consumer,
        Producer(contestant.bootstrap, topic, message, **options) as producer,
    ):
        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        producer.send(1)
        producer.flush()
        begun = time.perf_counter()
        for number in range(count):
            if (wait := begun + number / RATE - time.perf_counter()) > 0:
                time.sleep(wait)
            sent.append(time.perf_counter())
            producer.send(1)
        producer.flush()
        thread.join()
    if len(arrived) <= count:
        raise ClientFailed(f"{contestant.name}: {len(arrived)} of {count + 1} records arrived")
    skipped = int(_SETTLE_SECONDS * RATE)
    return percentiles([b - a for a, b in zip(sent, arrived[1:], strict=False)][skipped:])


@dataclass(frozen=True)
class IdleConnections:
    """The cost of idle connections: the seconds to open all of them, the broker's memory for each
    in KiB, and the latency of a Produce request while they are open."""

    connect_seconds: float
    kib_each: float
    produce: Latency


def idle_connections(contestant: Contestant, topic: str, count: int) -> IdleConnections:
    """Open `count` connections that each send a Metadata request and then nothing. Measure their
    cost."""
    allow_files(count + 1000)
    hello = framed(ApiKey.METADATA, MetadataRequest(topics=[]))
    frame = produce_frame(0, 1, b"v" * 100, topic=topic)
    before = processes.memory(contestant.pid)
    opened: list[socket.socket] = []
    try:
        started = time.perf_counter()
        for _ in range(count):
            connection = contestant.target.connect()
            opened.append(connection)
            ask(connection, hello)
        elapsed = time.perf_counter() - started
        after = processes.memory(contestant.pid)
        with contestant.target.connect() as connection:
            produced = percentiles(times(connection, frame, 2000))
    finally:
        for connection in opened:
            connection.close()
    kib = (after.rss_mib - before.rss_mib) * 1024 / count
    return IdleConnections(elapsed, kib, produced)


def times(connection: socket.socket, frame: bytes, count: int) -> list[float]:
    """Send `frame`, a request, `count` times, each time after the previous response. Return the
    seconds until each response."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        ask(connection, frame)
        taken.append(time.perf_counter() - started)
    return taken


def metadata_milliseconds(contestant: Contestant, count: int) -> float:
    """Return the median time in ms until the response to a Metadata request for all topics, of
    `count` requests."""
    frame = framed(ApiKey.METADATA, MetadataRequest(topics=None))
    with contestant.target.connect() as connection:
        ask(connection, frame)
        return statistics.median(times(connection, frame, count)) * 1000


def allow_files(count: int) -> None:
    """Raise the process's limit of open files as far as the machine allows. Child processes inherit
    the limit.

    Raises ClientFailed if the limit is still below `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, count)
    if soft != wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < count:
        raise ClientFailed(
            f"{count} open files are needed, but the limit is {wanted}; raise it with ulimit -n"
        )
