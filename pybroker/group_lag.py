"""Computes the lag of a consumer group in a partition, for the client and for the broker's metrics.

The caller reads the committed offsets first and the log end offsets afterwards. A group commits
only offsets that it has read. So the lag may include records that were appended between the two
reads, but it is never negative. If a committed offset is beyond the log end nevertheless (records
were lost, or an operator set the offset), the lag is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.model import NO_TIMESTAMP, TopicPartition

NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The offsets of a partition on its leader: `start` is the first offset, `stable` the last
    stable offset, and `end` the high watermark. `size_bytes` is the size of the log on disk, None
    if it is unknown.

    Invariant: 0 <= start <= stable <= end.
    """

    start: int
    stable: int
    end: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in a partition: in offsets, in bytes of the log, and as the age of the
    oldest record that the group has not read. A value that is unknown is None."""

    records: int
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The committed offsets and the lags of one group. A partition whose lag is unknown has no
    entry in `lags`."""

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
    """Return the number of offsets from `committed`, the committed offset, to `end`. As in Kafka's
    tools, the number includes the offsets at which a consumer gets no record: gaps from compaction,
    markers of transactions, and records that retention has deleted."""
    return max(0, end - committed)


def bytes_behind(committed: int, span: LogSpan) -> int | None:
    """Return an estimate of the size (bytes) of the log from `committed`, the committed offset, to
    the end. Return None if the size of the log is unknown. The estimate assumes that all offsets
    have the same size, because no API returns the position of an offset in the file."""
    if span.size_bytes is None:
        return None
    first = max(committed, span.start)
    if first >= span.end:
        return 0
    return round(span.size_bytes * (span.end - first) / (span.end - span.start))


def seconds_behind(timestamp_ms: int, now_ms: int) -> float | None:
    """Return the age (s) of the oldest record that the group has not read, by the record's
    timestamp. Return 0 if the timestamp is in the future, None if there is no timestamp."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    return max(0, now_ms - timestamp_ms) / 1_000
