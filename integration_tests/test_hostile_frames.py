"""Twenty thousand random and mutated frames: the broker lives, stays small, keeps its logs clean,
and serves a well-behaved client all along.

The frames are a function of the seed. Everything that they could do by accident is bounded: a
broker may well create a topic whose mutated name is legal.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import crc32c
import pytest

from integration_tests.broker import Broker
from integration_tests.sample_requests import NAME, corpus
from integration_tests.stored import batches
from integration_tests.wire_client import (
    Connection,
    ConnectionClosed,
    batch_of,
    create_topic,
    fetch_one,
    fetch_request,
    frame_of,
    produce,
    produce_request,
)
from pybroker.records.batch import HEADER_SIZE
from pybroker.records.compression import Codec
from pybroker.wire.api import APIS

SEED: Final = int(os.environ.get("PYBROKER_TEST_SEED", "20240229"))
FRAMES: Final = 20_000
ATTACKERS: Final = 4
PATIENCE_SECONDS: Final = 0.03
RSS_BYTES_MAX: Final = 300 * 1024 * 1024
PROBE_SECONDS_MAX: Final = 5.0
PROBE_TOPIC: Final = "probe"
BROKER_OVERRIDES: Final = {"auto.create.topics.enable": "false"}

TLS_HELLO: Final = bytes.fromhex("16030100c8010000c40303") + bytes(200)
HTTP: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTHS: Final = (-1, -2, 0, 1, 0x7FFF, 0x7FFFFFFF, -0x80000000, 0x00FFFFFF)


# Mutations


def flip(frame: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def cut(frame: bytearray, rng: random.Random) -> None:
    del frame[rng.randrange(len(frame)) :]


def lie_about_a_length(frame: bytearray, rng: random.Random) -> None:
    layout = rng.choice((">i", ">h"))
    at = rng.randrange(max(1, len(frame) - 4))
    value = rng.choice(LENGTHS)
    if layout == ">h":
        value = (value & 0x7FFF) - (0x8000 if value < 0 else 0)
    if at + struct.calcsize(layout) <= len(frame):
        struct.pack_into(layout, frame, at, value)


def insert(frame: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(frame))
    frame[at:at] = rng.randbytes(rng.choice((1, 2, 4, 9, 100)))


def drop(frame: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(frame))
    del frame[at : at + rng.choice((1, 2, 4, 9))]


def another_version(frame: bytearray, rng: random.Random) -> None:
    struct.pack_into(">h", frame, 2, rng.choice((-1, 0, 1, 5, 9, 12, 13, 99, 0x7FFF)))


def another_api(frame: bytearray, rng: random.Random) -> None:
    struct.pack_into(">h", frame, 0, rng.choice((-1, 4, 5, 6, 7, 56, 58, 999, *APIS)))


def ones(frame: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(frame))
    frame[at : at + 10] = b"\xff" * len(frame[at : at + 10])  # the longest varint and beyond


MUTATIONS: Final[tuple[Callable[[bytearray, random.Random], None], ...]] = (
    flip,
    cut,
    lie_about_a_length,
    insert,
    drop,
    another_version,
    another_api,
    ones,
)


def hostile_batch(rng: random.Random) -> bytes:
    """A record batch with mistakes inside, and the right CRC."""
    values = [rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 5))]
    batch = bytearray(batch_of(*values, codec=rng.choice(list(Codec))))
    for _ in range(rng.choice((0, 1, 1, 3))):
        rng.choice((flip, lie_about_a_length, ones, insert, drop))(batch, rng)
    if len(batch) > HEADER_SIZE and rng.random() < 0.9:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        batch[16] = 2
        struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def hostile_bytes(valid: list[bytes], rng: random.Random) -> bytes:
    """What is put on the wire, size prefix included."""
    kind = rng.random()
    if kind < 0.03:
        return rng.randbytes(rng.randrange(1, 300))
    if kind < 0.04:
        return rng.choice((TLS_HELLO, HTTP))
    if kind < 0.06:
        return struct.pack(">i", rng.choice(LENGTHS)) + rng.randbytes(20)
    if kind < 0.15:
        frame = bytearray(frame_of(rng.randint(3, 9), produce_request(NAME, hostile_batch(rng))))
        return struct.pack(">i", len(frame)) + bytes(frame)
    frame = bytearray(rng.choice(valid))
    if kind < 0.95:
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            if len(frame) > 12:
                rng.choice(MUTATIONS)(frame, rng)
    return struct.pack(">i", len(frame)) + bytes(frame)


class Probe:
    """A well-behaved client that produces and reads while others misbehave."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.slowest_seconds = 0.0
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            with Connection(self._bootstrap) as connection:
                while not self._end.wait(0.02):
                    begin = time.monotonic()
                    self._round(connection)
                    self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - begin)
        except BaseException as error:  # told to the test, in whose thread it can fail
            self.error = error

    def _round(self, connection: Connection) -> None:
        value = b"round %d" % self.rounds
        result = produce(connection, PROBE_TOPIC, batch_of(value))
        assert (result.error_code, result.base_offset) == (0, self.rounds)
        found = fetch_one(connection, PROBE_TOPIC, self.rounds)
        assert found.records is not None and value in bytes(found.records)
        self.rounds += 1

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def attack(bootstrap: str, rng: random.Random, valid: list[bytes]) -> int:
    """One attacker's share of the frames. Each is given the time to be handled; a connection is
    used until the broker closes it or says nothing. Returns how many answers came."""
    answers = 0
    sent = 0
    while sent < FRAMES // ATTACKERS:
        with Connection(bootstrap) as connection:
            connection.set_timeout(PATIENCE_SECONDS)
            try:
                while sent < FRAMES // ATTACKERS:
                    sent += 1
                    connection.send_bytes(hostile_bytes(valid, rng))
                    connection.receive_frame()
                    answers += 1
            except (OSError, ConnectionClosed):
                continue
    return answers


def logs_below(data: Path) -> Iterator[tuple[str, int]]:
    """Topic and partition of every log."""
    for segment in data.rglob("*.log"):
        topic, dash, partition = segment.parent.name.rpartition("-")
        if dash and partition.isdigit() and segment.stem.isdigit():
            yield topic, int(partition)


def test_a_connection_that_says_nothing_more_holds_nobody_up(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            idle = stack.enter_context(Connection(broker.bootstrap))
            idle.send_bytes(struct.pack(">i", 1_000_000) + b"half a request")
        with Connection(broker.bootstrap) as connection:
            create_topic(connection, "beside-slow-ones")
            assert produce(connection, "beside-slow-ones", batch_of(b"x")).error_code == 0
        assert broker.process.running


def test_answers_that_nobody_reads_do_not_fill_the_memory(broker: Broker) -> None:
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "large", configs={"max.message.bytes": "2000000"})
        create_topic(connection, "small")
        produce(connection, "large", batch_of(bytes(1_000_000)))
    request = frame_of(12, fetch_request("large", {0: 0}))
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            deaf = stack.enter_context(Connection(broker.bootstrap))
            for _ in range(50):
                deaf.send_frame(request)
        with Connection(broker.bootstrap) as connection:
            for expected in range(300):
                assert produce(connection, "small", batch_of(b"x")).base_offset == expected
        assert broker.process.rss_bytes() < RSS_BYTES_MAX or is_apache(broker)


def unhandled(broker: Broker) -> set[str]:
    """The last lines of the stack traces that the broker printed: an input may be refused, but it
    must not surprise."""
    traces = broker.log_text.split("Traceback (most recent call last):\n")[1:]
    ends = (
        next((line for line in trace.splitlines() if not line.startswith(" ")), "")
        for trace in traces
    )
    return set(ends)


def is_apache(broker: Broker) -> bool:
    """Java takes the heap that it was given."""
    return "java" in broker.process.command[0]


@pytest.mark.timeout(400)
def test_hostile_frames_hurt_nobody(broker: Broker) -> None:
    rng = random.Random(SEED)
    valid = corpus(rng)
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, NAME, partitions=4)
        create_topic(connection, PROBE_TOPIC)
    with Probe(broker.bootstrap) as probe, ThreadPoolExecutor(ATTACKERS) as attackers:
        shares = [
            attackers.submit(attack, broker.bootstrap, random.Random(SEED + share), valid)
            for share in range(ATTACKERS)
        ]
        answers = sum(share.result() for share in shares)
    assert answers > FRAMES // 50, "the valid requests among them are answered"
    assert probe.error is None, f"the well-behaved client was not served: {probe.error!r}"
    assert probe.rounds > 100 and probe.slowest_seconds < PROBE_SECONDS_MAX
    assert broker.process.running
    assert broker.process.rss_bytes() < RSS_BYTES_MAX or is_apache(broker)
    assert unhandled(broker) == set() or is_apache(broker)
    for topic, partition in set(logs_below(broker.data)):
        for _ in batches(broker.data, topic, partition):
            pass  # reading is the check
    with Connection(broker.bootstrap) as connection:
        result = produce(connection, PROBE_TOPIC, batch_of(b"after"))
        assert (result.error_code, result.base_offset) == (0, probe.rounds)
