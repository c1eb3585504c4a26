"""The sends to compacted topics, and the reads of these topics. Compaction may remove all records
of a key but the last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pybroker.testing.history.values import TopicPartition

_UNKNOWN = -1


@dataclass(slots=True)
class KeyedSend:
    """The send of a record with a key. `value` is unique, or None for a tombstone. `outcome` is
    "ok" if the record is certainly committed, "fail" if it is certainly not, else "info".
    `may_repeat`: the record may be stored twice. Times are in ns."""

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
    """The committed records that the reader `source` found from the offset `start` to below `end`.
    Times are in ns. `is_final`: the read began after all producers had stopped. `broker`: the
    broker whose files were read; UNKNOWN for a client."""

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
    """All operations on compacted topics. `delete_retention` is delete.retention.ms in ns. It is 0
    if a clock jumps during the run, because brokers may then remove tombstones early."""

    sends: list[KeyedSend] = field(default_factory=list)
    reads: list[KeyedRead] = field(default_factory=list)
    delete_retention: int = 0
    doubted: set[int] = field(default_factory=set)
    """The brokers whose disks have lost data during the run."""
