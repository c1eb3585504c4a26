"""The operations on a compacted topic: keyed records that were sent, and reads of the topic.

These operations are kept apart from those of the other topics, because compaction removes records:
only the last record of each key must stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pybroker.testing.history.values import TopicPartition

_UNKNOWN = -1


@dataclass(slots=True)
class KeyedSend:
    """The send of a record with a key. `value` is unique; None is a tombstone. `outcome` is "ok"
    once the record is certainly committed, "fail" if it certainly is not, else "info". `offset` is
    UNKNOWN until the broker's answer. `may_repeat`: the producer is not idempotent, so the record
    may be stored more than once. Times are in ns."""

    partition: TopicPartition
    key: str
    value: str | None
    begun: int
    may_repeat: bool = False
    outcome: str = "info"
    ended: int = 0
    offset: int = _UNKNOWN

    def __str__(self) -> str:
        return f"send of {self.key}={self.value}: {self.outcome}@{self.offset}"


class KeyedRecord(NamedTuple):
    """A committed record that was read; `value` is None for a tombstone."""

    offset: int
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class KeyedRead:
    """The committed records that one reader found from the offset `start` up to, not including,
    `end`. The read lasted from `begun` to `ended` (ns). `is_final` says that all clients had
    stopped writing before the read. `source` names the client or the files; `broker` is the id of
    the files' broker, UNKNOWN for a client."""

    partition: TopicPartition
    source: str
    begun: int
    ended: int
    start: int
    end: int
    records: tuple[KeyedRecord, ...]
    is_final: bool = False
    broker: int = _UNKNOWN

    def __str__(self) -> str:
        return f"read of {self.source}, offsets {self.start} to {self.end}"


@dataclass(slots=True)
class Keyed:
    """All operations on compacted topics. `delete_retention` is their delete.retention.ms in ns, 0
    if the brokers' clocks jump during the run, so that tombstones may be removed at any time."""

    sends: list[KeyedSend] = field(default_factory=list)
    reads: list[KeyedRead] = field(default_factory=list)
    delete_retention: int = 0
    doubted: set[int] = field(default_factory=set)
    """The brokers whose disks have lost data during the run."""
