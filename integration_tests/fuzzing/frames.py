"""The attackers' traffic: a stream of moves that is a function of its seed.

Frames have three origins: requests generated from the declarations (`structured`), valid requests
of our client and of real clients, both with changed bytes, and random bytes. A move may also vary
the transport: frames in pieces, several frames at once, half a frame and then silence.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import crc32c

from integration_tests.fuzzing.structured import LENGTHS, structured_frame
from integration_tests.sample_requests import NAME, corpus, sample_batch
from integration_tests.wire_client import batch_of, frame_of, produce_request
from pybroker.records.batch import HEADER_SIZE
from pybroker.records.compression import Codec
from pybroker.wire.api import APIS
from unit_tests.fuzzing.recorded import recorded_requests

TLS_HELLO: Final = bytes.fromhex("16030100c8010000c40303") + bytes(200)
HTTP: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Move:
    """The next step of a connection: send these pieces one after the other, then perhaps close the
    sending direction or the whole connection. `frames` is the number of started frames.
    """

    pieces: tuple[bytes, ...]
    frames: int = 1
    half_close: bool = False
    close: bool = False


# Changes of bytes


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


def mutated(frame: bytes, rng: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if len(changed) > 12:
            rng.choice(MUTATIONS)(changed, rng)
    return bytes(changed)


def hostile_batch(rng: random.Random) -> bytes:
    """Return a record batch with errors in its content, but a right CRC."""
    batch = bytearray(sample_batch(rng))
    if rng.random() < 0.5:
        values = [rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 5))]
        times = [1_700_000_000_000] * len(values)
        batch = bytearray(batch_of(*values, timestamps=times, codec=rng.choice(list(Codec))))
    for _ in range(rng.choice((0, 1, 1, 3))):
        rng.choice((flip, lie_about_a_length, ones, insert, drop))(batch, rng)
    if len(batch) > HEADER_SIZE and rng.random() < 0.9:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        batch[16] = 2
        struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


# Moves


class Moves:
    """An endless stream of moves; the same seed gives the same moves."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._valid = corpus(random.Random("the same for all seeds"))
        self._recorded = [one.frame for one in recorded_requests()]
        self._apis = list(APIS.values())

    def __iter__(self) -> Iterator[Move]:
        while True:
            yield self._move()

    def _frame(self) -> bytes:
        rng = self._rng
        kind = rng.random()
        if kind < 0.08:
            return frame_of(rng.randint(3, 9), produce_request(NAME, hostile_batch(rng)))
        if kind < 0.45:
            return structured_frame(rng.choice(self._apis), rng)
        if kind < 0.50:
            return rng.choice(self._valid)
        return mutated(rng.choice(self._recorded if kind < 0.75 else self._valid), rng)

    def _move(self) -> Move:
        rng = self._rng
        kind = rng.random()
        if kind < 0.02:
            return Move((rng.randbytes(rng.randrange(1, 300)),))
        if kind < 0.03:
            return Move((rng.choice((TLS_HELLO, HTTP)),))
        if kind < 0.045:
            return Move((struct.pack(">i", rng.choice(LENGTHS)) + rng.randbytes(20),))
        whole = framed(self._frame())
        if kind < 0.07:
            return Move((whole[: rng.randrange(1, len(whole))],), close=True)
        if kind < 0.09:
            cuts = sorted(rng.randrange(len(whole)) for _ in range(3))
            begins, ends = (0, *cuts), (*cuts, len(whole))
            return Move(tuple(whole[a:b] for a, b in zip(begins, ends, strict=True) if a < b))
        if kind < 0.11:
            return Move((whole,), half_close=True)
        if kind < 0.12:
            return Move((whole,), close=True)
        if kind < 0.15:
            further = [framed(self._frame()) for _ in range(rng.randrange(2, 20))]
            return Move((whole + b"".join(further),), frames=1 + len(further))
        return Move((whole,))
