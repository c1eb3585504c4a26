"""The errors of `ClassicConsumer`, besides those of the client."""

from __future__ import annotations

from collections.abc import Collection

from pybroker.client.errors import ClientError, ResponseError
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition


class RebalanceFailed(ClientError):
    """The member did not get its partitions within rebalance.max.retries multiplied by
    rebalance.backoff.ms. The message has the reason. The member tries again when a watched
    ZooKeeper node changes."""

    retriable = True


class GroupIsCoordinated(ResponseError):
    """A broker coordinates the group: its members use JoinGroup. A ZooKeeper consumer must not join
    it, because partitions would have two owners."""

    def __init__(self, group_id: str, member: str) -> None:
        super().__init__(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"group {group_id} has members that use JoinGroup, such as {member}; set another"
            " group.id for this ZooKeeper consumer, or wait until those members have left",
        )


class ConsumerIdTaken(ClientError):
    """Another live session has registered this consumer.id."""

    retriable = True


class NotOwned(ClientError):
    """The offsets of these partitions were not committed, because the group member does not own the
    partitions."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        names = ", ".join(str(item) for item in sorted(partitions))
        super().__init__(
            f"the offsets of {names} were not committed, because this member does not own these"
            " partitions"
        )
        self.partitions = frozenset(partitions)
