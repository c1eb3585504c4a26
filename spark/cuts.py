"""`PartitionCut`: the range of offsets of a partition in a snapshot. `compare`: the change of a
partition between two snapshots."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pybroker.client.ranges.model import Counted
from pybroker.errors import PybrokerError
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition


class SnapshotError(PybrokerError):
    """A snapshot cannot be taken, read or used. The message is one line, and says which input to
    change."""


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """The offsets of a partition from `start` up to, not including, `end`. `log_start` and
    `leader_epoch` are those at the snapshot's time (-1: unknown). `counts` has the numbers of
    records in this range (empty: not counted)."""

    start: int
    end: int
    log_start: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    counts: tuple[Counted, ...] = ()

    @property
    def records(self) -> int | None:
        """The number of records; None if the records were not counted. An empty range has 0
        records."""
        if self.start < self.end and not self.counts:
            return None
        return sum(each.records for each in self.counts)


@dataclass(frozen=True, slots=True)
class TopicCut:
    """The ranges of a topic, sorted by partition. `topic_id` is a UUID as text, "" in a cluster
    without topic ids."""

    topic_id: str
    partitions: Mapping[int, PartitionCut] = field(hash=False)


class Change(enum.Enum):
    """The kind of change of a partition between two snapshots."""

    NEW = "new"
    GROWN = "grown"
    SAME = "same"
    SHRUNK = "shrunk"
    """The end offset is lower than in the earlier snapshot: an unclean election lost records."""
    RECREATED = "recreated"
    """The partition belongs to a recreated topic."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The change of a partition between two snapshots. `before` and `after` are the partition's
    ranges (None: the snapshot lacks the partition).

    `offsets`, by `change`:

    - new, recreated: the number of offsets in `after`
    - removed: minus the number of offsets in `before`
    - otherwise: the later minus the earlier end offset
    """

    topic_partition: TopicPartition
    change: Change
    offsets: int
    before: PartitionCut | None
    after: PartitionCut | None


def compare(
    key: TopicPartition,
    earlier: tuple[str, PartitionCut] | None,
    later: tuple[str, PartitionCut] | None,
) -> PartitionChange:
    """Return the change of a partition. `earlier` and `later` are its (topic id, range) in the
    earlier and in the later snapshot, or None if the snapshot lacks the partition. At most one is
    None."""
    old, new = earlier and earlier[1], later and later[1]
    if earlier is None or old is None:
        assert new is not None
        return PartitionChange(key, Change.NEW, new.end - new.start, None, new)
    if later is None or new is None:
        return PartitionChange(key, Change.REMOVED, old.start - old.end, old, None)
    if earlier[0] and later[0] and earlier[0] != later[0]:
        return PartitionChange(key, Change.RECREATED, new.end - new.start, old, new)
    grown = new.end - old.end
    change = Change.GROWN if grown > 0 else Change.SHRUNK if grown < 0 else Change.SAME
    return PartitionChange(key, change, grown, old, new)
