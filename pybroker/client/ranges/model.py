"""An offset range of one partition, as a snapshot stores it, and the reasons why it can no longer
be read."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from pybroker.client.errors import ClientError
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition


class Counted(NamedTuple):
    """The number of records from the offset `first` up to, not including, `beyond`. `digest` (0 to
    DIGEST_END - 1) is the digest of their offsets, as `counts.py` computes it."""

    first: int
    beyond: int
    records: int
    digest: int


DIGEST_END: Final = 2**53 - 111
"""The largest prime below 2**53. JSON parsers read numbers below 2**53 exactly."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets from `start` up to, not including, `end` of one partition: 0 <= start <= end.

    The other fields describe the partition when the range was created. `topic_id` is a UUID as
    text, "" if unknown. Unknown numbers are -1. `counts` has the number of records in each counted
    part of the range.
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
        """The number of offsets, an upper bound of the number of records."""
        return self.end - self.start

    def part(self, start: int, end: int) -> Self:
        """Return the range from `start` up to, not including, `end`. The new range keeps each
        element of `counts` whose offsets are all in the new range."""
        inside = (each for each in self.counts if start <= each.first and each.beyond <= end)
        return replace(self, start=start, end=end, counts=tuple(inside))


class RangeFault(enum.Enum):
    """The reason why a range cannot be read with exactly its original records."""

    AGED_OUT = "aged out"
    """The log start offset is above the start of the range: retention or DeleteRecords deleted
    records."""
    RECREATED = "recreated"
    """The topic was deleted and recreated."""
    TRUNCATED = "truncated"
    """An unclean election removed acknowledged records."""
    COMPACTED = "compacted"
    """The records differ from the counted records: compaction removed some records, or the new
    leader is less compacted."""
    CORRUPT = "corrupt"
    """A batch repeatedly does not match its checksum."""
    STALLED = "stalled"
    """No batch could be read for the time kafkaConsumer.pollTimeoutMs."""
    GONE = "gone"
    """The topic or the partition no longer exists."""


class RangeFailed(ClientError):
    """The records of a range cannot be read, or have changed since the range was created. `offset`
    is the first affected offset."""

    def __init__(
        self, topic_partition: TopicPartition, offset: int, reason: RangeFault, text: str
    ) -> None:
        super().__init__(f"{topic_partition}@{offset}: {text}")
        self.topic_partition = topic_partition
        self.offset = offset
        self.reason = reason
        self.retriable = reason is RangeFault.STALLED
