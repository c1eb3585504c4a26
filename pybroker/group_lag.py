"""The lag of a consumer group in a partition. Callers must read the committed offsets before the
high watermarks, so that no lag is negative."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.model import NO_TIMESTAMP, TopicPartition

NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The offsets of a partition on its leader: 0 <= log start <= last stable offset <= high
    watermark (`end`). `size_bytes` is the size of the log on disk, None if unknown."""

    start: int
    stable: int
    end: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in a partition: offsets, bytes of the log, and age (s) of the oldest
    unread record. None means unknown."""

    records: int
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The committed offsets and the lags of one group. A partition whose lag in offsets is unknown
    has no entry in `lags`."""

    group_id: str
    members: int = 0
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    lags: Mapping[TopicPartition, Lag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The progress of all groups that a broker coordinates, measured `age_s` seconds ago."""

    groups: tuple[GroupProgress, ...]
    age_s: float


def records_behind(committed: int, end: int) -> int:
    """Return the number of offsets from `committed` to `end`. As in Kafka's tools, this includes
    offsets without a record: gaps from compaction, transaction markers, and deleted records."""
    return max(0, end - committed)


def bytes_behind(committed: int, span: LogSpan) -> int | None:
    """Return the estimated size (bytes) of the log from `committed` on, as if all offsets had the
    same size; None if unknown."""
    if span.size_bytes is None:
        return None
    first = max(committed, span.start)
    if first >= span.end:
        return 0
    return round(span.size_bytes * (span.end - first) / (span.end - span.start))


def seconds_behind(timestamp_ms: int, now_ms: int) -> float | None:
    """Return the age (s) of the oldest unread record. `timestamp_ms` is the record's timestamp.
    Return 0 for a timestamp in the future, None for NO_TIMESTAMP."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    return max(0, now_ms - timestamp_ms) / 1_000
