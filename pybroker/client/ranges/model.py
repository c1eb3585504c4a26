"""A range of one partition, as a snapshot names it, and the ways in which it cannot be read any
more. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from pybroker.client.errors import ClientError
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition


class Counted(NamedTuple):
    """What the offsets from `first` up to, not including, `beyond` held when they were counted.
    `digest` (0 to DIGEST_END - 1) tells other offsets in the same number (see `range_counts`)."""

    first: int
    beyond: int
    records: int
    digest: int


DIGEST_END: Final = 2**53 - 111
"""The largest prime below 2**53: every reader of JSON keeps such numbers."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets from `start` up to, not including, `end` of one partition: 0 <= start <= end.

    The rest is what the cluster said when the range was made, by which later damage is noticed:
    the topic's id as UUID text ("" where the cluster gives topics no ids), the leader's epoch and
    where the log began (-1: unknown, and then nothing is compared); and, if they were counted, the
    records of the range, stretch after stretch.
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
        """How many offsets: an upper bound of the number of records."""
        return self.end - self.start

    def part(self, start: int, end: int) -> Self:
        """The offsets from `start` to `end` of it, with the counts of stretches that lie inside."""
        inside = (each for each in self.counts if start <= each.first and each.beyond <= end)
        return replace(self, start=start, end=end, counts=tuple(inside))


class RangeFault(enum.Enum):
    """Why a range cannot be read as it was."""

    AGED_OUT = "aged out"
    """The log begins behind the range's start: retention or DeleteRecords took records."""
    RECREATED = "recreated"
    """Another topic has the name now."""
    TRUNCATED = "truncated"
    """An unclean election took records that had been acknowledged."""
    COMPACTED = "compacted"
    """Not the records that were counted: compaction removed some since, or another replica leads
    that was compacted less."""
    CORRUPT = "corrupt"
    """A batch does not match its checksum, and goes on not to."""
    STALLED = "stalled"
    """Nothing could be read for kafkaConsumer.pollTimeoutMs."""
    GONE = "gone"
    """The topic or the partition is not there any more."""


class RangeFailed(ClientError):
    """A range cannot be read as it was when it was made. `offset` is the first that is missing."""

    def __init__(
        self, topic_partition: TopicPartition, offset: int, reason: RangeFault, text: str
    ) -> None:
        super().__init__(f"{topic_partition}@{offset}: {text}")
        self.topic_partition = topic_partition
        self.offset = offset
        self.reason = reason
        self.retriable = reason is RangeFault.STALLED
