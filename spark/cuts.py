"""What a snapshot says of each partition, and what becomes of a partition from one to the next.
Values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pybroker.client.ranges.model import Counted
from pybroker.errors import PybrokerError
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition


class SnapshotError(PybrokerError):
    """A snapshot cannot be taken, read or used; the text is one line that says what to change."""


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The offsets from `start` up to, not including, `end`; where the log began and which leader
    epoch it had when the cut was made (-1: unknown). 0 <= `start` <= `end`. If its records were
    counted, `counts` are the stretches from `start` to `end` without a gap."""

    start: int
    end: int
    log_start: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    counts: tuple[Counted, ...] = ()

    @property
    def records(self) -> int | None:
        """None if they were not counted; without offsets there are none."""
        if self.start < self.end and not self.counts:
            return None
        return sum(each.records for each in self.counts)


@dataclass(frozen=True, slots=True)
class TopicCut:
    """`topic_id` is the UUID as text, "" where the cluster gives topics no ids. Partitions are in
    the order of their numbers."""

    topic_id: str
    partitions: Mapping[int, PartitionCut] = field(hash=False)


class Change(enum.Enum):
    """What became of a partition from one snapshot to the next."""

    NEW = "new"
    GROWN = "grown"
    SAME = "same"
    SHRUNK = "shrunk"
    """It ends before where it ended: an unclean election took records."""
    RECREATED = "recreated"
    """It belongs to another topic of the same name."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """`offsets` is how much the end moved; for a partition that is new all that it has, and
    negative where it lost some."""

    topic_partition: TopicPartition
    change: Change
    offsets: int
    before: PartitionCut | None
    after: PartitionCut | None


def compare(
    key: TopicPartition,
    before: tuple[str, PartitionCut] | None,
    after: tuple[str, PartitionCut] | None,
) -> PartitionChange:
    """Of one partition: the topic's id and its cut, before and after; it is in one of them."""
    old, new = before and before[1], after and after[1]
    if before is None or old is None:
        assert new is not None
        return PartitionChange(key, Change.NEW, new.end - new.start, None, new)
    if after is None or new is None:
        return PartitionChange(key, Change.REMOVED, old.start - old.end, old, None)
    if before[0] and after[0] and before[0] != after[0]:
        return PartitionChange(key, Change.RECREATED, new.end - new.start, old, new)
    grown = new.end - old.end
    change = Change.GROWN if grown > 0 else Change.SHRUNK if grown < 0 else Change.SAME
    return PartitionChange(key, change, grown, old, new)
