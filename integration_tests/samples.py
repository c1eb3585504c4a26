"""The sample records that every client must transfer unchanged, and the common interface of clients
for tests.

A `Sample` is a record before it has an offset. This module imports no client library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""The names of `compression.type`; the index is the codec's number in a batch."""

FIRST_TIMESTAMP_MS: Final = 1_577_836_800_000
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A record to write: timestamp in ms since 1970, headers in order."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = FIRST_TIMESTAMP_MS


@dataclass(frozen=True, slots=True)
class Read:
    """A record that a client has read."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int = field(compare=False, default=-1)


class KafkaClient(Protocol):
    """The interface of a real client for a test. Operations use partition 0 unless stated
    otherwise.
    """

    name: str
    samples: tuple[Sample, ...]
    """The samples that the client can write. (A command line tool cannot write null headers.)"""

    def create_topic(self, topic: str) -> None: ...

    def produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        """Produce the samples in order. Return when all are acknowledged with acks=all."""

    def read(self, topic: str, offset: int = 0) -> list[Read]:
        """Read from `offset` to the end of the partition at the time of the call."""

    def offset_for_time(self, topic: str, timestamp: int) -> int:
        """Return the first offset whose timestamp is at least `timestamp` (ms); -1 if there is
        none.
        """


def _large(size: int) -> bytes:
    """Return different lines of text, which compress well, but not to a few bytes."""
    line = b"%06d the quick brown fox jumps over the lazy dog; "
    return b"".join(line % number for number in range(size // len(line) + 1))[:size]


def _at_one_second_each(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    return tuple(
        Sample(s.key, s.value, s.headers, FIRST_TIMESTAMP_MS + 1000 * index)
        for index, s in enumerate(samples)
    )


PLAIN_SAMPLES: Final = _at_one_second_each(
    [
        Sample(b"key-1", b"value-1"),
        Sample("ключ".encode(), "värde ☃".encode()),
        Sample(b"tombstone", None),
        Sample(None, b"no key"),
        Sample(b"large", _large(150_000)),
        Sample(b"key-1", b"value-2"),
    ]
)
"""Samples with text and null values only, which a line-based tool can write."""

SAMPLES: Final = _at_one_second_each(
    [
        *PLAIN_SAMPLES,
        Sample(b"empty value", b""),
        Sample(b"", b"empty key"),
        Sample(bytes(range(256)), bytes(reversed(range(256))) * 4),
        Sample(b"headers", b"x", (("a", b"1"), ("b", b"\xff\x00\x01"), ("empty", b""))),
        Sample(b"headers", b"x", (("имя-☃", "значение".encode()), ("null", None))),
        Sample(b"large-2", _large(110_000), (("content-type", b"text/plain"),)),
        Sample(b"neither value nor headers", None),
    ]
)
"""Samples with all features of a record. No header name occurs twice in a record, because kafkajs
sorts such headers.
"""

WITHOUT_NULL_HEADERS: Final = tuple(
    s for s in SAMPLES if all(value is not None for _, value in s.headers)
)
"""Samples for client libraries that refuse to write a header without a value."""


def as_read(samples: Sequence[Sample], first_offset: int = 0) -> list[Read]:
    """Return the records that a reader must get if `samples` were appended from `first_offset`
    on.
    """
    return [
        Read(first_offset + index, s.key, s.value, s.headers, s.timestamp)
        for index, s in enumerate(samples)
    ]
