"""The lag of a consumer group in a partition: the arithmetic, for the client and for the broker's
metrics.

The caller reads the committed offsets first and the log end offsets afterwards. A group commits
only offsets that it has read, so the lag can be too large by the records that arrived in between,
but never negative. If a committed offset is beyond the log end nevertheless (records were lost, or
an operator set the offset), the lag is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.model import NO_TIMESTAMP, TopicPartition

NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class LogSpan:
    """A partition as its leader has it: `start` is the first offset, `stable` the last stable
    offset and `end` the high watermark. `size_bytes` is that of the log on disk, None if unknown.

    Invariant: 0 <= start <= stable <= end.
    """

    start: int
    stable: int
    end: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in a partition. None: not known."""

    records: int
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group, its committed offset of each partition, and its lag. A partition whose lag is
    unknown has no entry in the lags."""

    group_id: str
    members: int = 0
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    lags: Mapping[TopicPartition, Lag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The groups of a broker as they were `age_s` seconds ago."""

    groups: tuple[GroupProgress, ...]
    age_s: float


def records_behind(committed: int, end: int) -> int:
    """The offsets from the committed one to `end`. Kafka's tools count the same: gaps that
    compaction and transactions leave are in it, and so is what retention deleted unread."""
    return max(0, end - committed)


def bytes_behind(committed: int, span: LogSpan) -> int | None:
    """The estimated size in bytes of the log from the committed offset to its end. The estimate
    takes all offsets to be of the same size, because no API tells an offset's position in the
    file. None if the size of the log is not known."""
    if span.size_bytes is None:
        return None
    first = max(committed, span.start)
    if first >= span.end:
        return 0
    return round(span.size_bytes * (span.end - first) / (span.end - span.start))


def seconds_behind(timestamp_ms: int, now_ms: int) -> float | None:
    """The age in seconds of the oldest unconsumed record, by its timestamp. 0 if the timestamp is
    in the future, None if there is no timestamp."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    return max(0, now_ms - timestamp_ms) / 1_000
