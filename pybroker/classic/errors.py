"""The errors of the classic consumer, beyond those of the client."""

from __future__ import annotations

from collections.abc import Collection

from pybroker.client.errors import ClientError, ResponseError
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition


class RebalanceFailed(ClientError):
    """The member could not get its partitions within rebalance.max.retries times
    rebalance.backoff.ms; the message and `__cause__` say why. It reads none of them meanwhile, and
    tries again when something changes."""

    retriable = True


class GroupIsCoordinated(ResponseError):
    """Brokers coordinate the group (its members use JoinGroup): no classic consumer may join it, or
    partitions would have two owners. Use another group, or wait until those members have left."""

    def __init__(self, group_id: str, member: str) -> None:
        super().__init__(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"group {group_id} is coordinated by brokers (member {member}); a classic consumer"
            " needs a group of its own",
        )


class ConsumerIdTaken(ClientError):
    """Another living session has registered under this consumer.id."""

    retriable = True


class NotOwned(ClientError):
    """The partitions do not belong, or no longer belong, to this member; nothing was committed for
    them."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        names = ", ".join(str(item) for item in sorted(partitions))
        super().__init__(f"not committed, because this member does not own {names}")
        self.partitions = frozenset(partitions)
