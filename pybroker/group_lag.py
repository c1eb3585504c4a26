"""How far a group is behind in a partition: the arithmetic, for the client and for a broker's own
metrics.

Whoever calls has read what was committed first and the ends of the log after it. A group commits
only what it has read, so that the lag can then be too large by what came in between, never below
zero; where a commit lies beyond the end nevertheless (records were lost, or somebody chose the
offset), nothing is left to read and the lag is 0.
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
    """How far a group is behind in a partition. None: not known."""

    records: int
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group, what it has committed of each partition, and how far that is behind; partitions of
    which the lag is not known have none."""

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
    """The part of the log from the committed offset on, in bytes: an estimate, for no broker tells
    where in its files an offset lies. It takes all offsets of the log to be of the same size. None
    if the size of the log is not known."""
    if span.size_bytes is None:
        return None
    first = max(committed, span.start)
    if first >= span.end:
        return 0
    return round(span.size_bytes * (span.end - first) / (span.end - span.start))


def seconds_behind(timestamp_ms: int, now_ms: int) -> float | None:
    """For how long the oldest record that is not yet consumed has waited, by its timestamp; 0 if
    that lies in the future, None if it has none."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    return max(0, now_ms - timestamp_ms) / 1_000
