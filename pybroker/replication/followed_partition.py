"""The fetcher's state of one followed partition during one leader epoch."""

from __future__ import annotations

from collections.abc import Callable

from pybroker.errors import ErrorCode
from pybroker.replication.partition import Partition


class FollowedPartition:
    """The fetcher's state of one followed partition during one leader epoch."""

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
        """The creator must call `partition.watch` with this object. The next change of
        `partition` then calls `on_change` with this object. Each further change needs another
        call of `watch`."""
        self.partition = partition
        self.on_change = on_change
        self.leader_epoch = partition.leader_epoch
        self.agrees = False
        """Whether the leader has answered a fetch from the follower's log end without an error. The
        two logs are then equal below that offset."""
        self.lag = 0
        """By how many offsets the follower's log end was below the leader's high watermark at the
        leader's last answer."""
        self.failures = 0
        """The number of failed attempts in a row to copy this partition."""
        self.not_before = 0.0
        """The time (loop seconds) before which the fetcher does not fetch this partition."""
        self.told: tuple[ErrorCode, int] | None = None
        """The error that was logged last for this partition, and its log level."""

    def partition_changed(self) -> None:
        self.on_change(self)
