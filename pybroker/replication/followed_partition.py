"""The fetcher's state of a followed partition in one leader epoch."""

from __future__ import annotations

from collections.abc import Callable

from pybroker.errors import ErrorCode
from pybroker.replication.partition import Partition


class FollowedPartition:
    """The state that a fetcher keeps of one partition during one leader epoch."""

    __slots__ = (
        "agrees",
        "failures",
        "lag",
        "leader_epoch",
        "not_before",
        "on_change",
        "partition",
        "told",
    )

    def __init__(
        self,
        partition: Partition,
        on_change: Callable[[FollowedPartition], None] = lambda followed: None,
    ) -> None:
        """`on_change` is called at the next change of the partition once it is watched."""
        self.partition = partition
        self.on_change = on_change
        self.leader_epoch = partition.leader_epoch
        self.agrees = False
        """Whether the leader has answered a fetch at the follower's log end without an error: both
        logs are equal below that offset."""
        self.lag = 0
        """How many offsets the follower was behind the leader's high watermark at the last
        answer."""
        self.failures = 0
        """The number of failures in a row."""
        self.not_before = 0.0
        """The time (loop seconds) of the next permitted fetch."""
        self.told: tuple[ErrorCode, int] | None = None
        """The failure that was logged last, and its log level."""

    def partition_changed(self) -> None:
        self.on_change(self)
