"""A range of one partition, as a snapshot names it, and the reasons why it can no longer be read.
Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from pybroker.client.errors import ClientError
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition


class Counted(NamedTuple):
    """The records that the offsets from `first` up to, not including, `beyond` held when they were
    counted. `digest` (0 to DIGEST_END - 1) detects other offsets in the same number (see
    `counts`)."""

    first: int
    beyond: int
    records: int
    digest: int


DIGEST_END: Final = 2**53 - 111
"""The largest prime below 2**53: every JSON reader keeps such numbers exactly."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets from `start` up to, not including, `end` of one partition: 0 <= start <= end.

    The other fields are from the cluster when the range was made, and show later damage: the
    topic's id as UUID text ("" if the cluster has no topic ids), the leader's epoch and the log
    start (-1: unknown, and then nothing is compared); and, if they were counted, the records of the
    range by stretches.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    leader_epoch: int = NO_EPOCH
    log_start: int = NO_OFFSET
    counts: tuple[Counted, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def offsets(self) -> int:
        """The number of offsets: an upper bound of the number of records."""
        return self.end - self.start

    def part(self, start: int, end: int) -> Self:
        """Return the offsets from `start` to `end` of it, with the counts of stretches inside."""
        inside = (each for each in self.counts if start <= each.first and each.beyond <= end)
        return replace(self, start=start, end=end, counts=tuple(inside))


class RangeFault(enum.Enum):
    """Why a range cannot be read as it was."""

    AGED_OUT = "aged out"
    """The log begins behind the range's start: retention or DeleteRecords deleted records."""
    RECREATED = "recreated"
    """The name belongs to a recreated topic."""
    TRUNCATED = "truncated"
    """An unclean election removed acknowledged records."""
    COMPACTED = "compacted"
    """The records differ from those counted: compaction removed some since, or another replica
    leads that was compacted less."""
    CORRUPT = "corrupt"
    """A batch does not match its checksum, repeatedly."""
    STALLED = "stalled"
    """Nothing could be read for kafkaConsumer.pollTimeoutMs."""
    GONE = "gone"
    """The topic or the partition no longer exists."""


class RangeFailed(ClientError):
    """A range cannot be read as it was when it was made. `offset` is the first missing one."""

    def __init__(
        self, topic_partition: TopicPartition, offset: int, reason: RangeFault, text: str
    ) -> None:
        super().__init__(f"{topic_partition}@{offset}: {text}")
        self.topic_partition = topic_partition
        self.offset = offset
        self.reason = reason
        self.retriable = reason is RangeFault.STALLED
