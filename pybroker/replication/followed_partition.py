"""A partition that is followed, in one leader epoch."""

from __future__ import annotations

from pybroker.errors import ErrorCode
from pybroker.replication.partition import Partition


class FollowedPartition:
    """What a fetcher knows of it. Ends with the epoch."""

    __slots__ = ("agrees", "failures", "lag", "leader_epoch", "not_before", "partition", "told")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.agrees = False
        """Whether the leader has said, without an error, what comes after our log end: both logs
        are one up to there."""
        self.lag = 0
        """How many offsets it was behind the leader's high watermark at the last answer."""
        self.failures = 0
        """In a row."""
        self.not_before = 0.0
        """In the loop's time."""
        self.told: tuple[ErrorCode, int] | None = None
        """The failure that has been logged, and at which level."""
