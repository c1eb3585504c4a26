"""The reactions of a group member to the error codes of its coordinator. Each request has a table
of reactions. For a code outside the table, the request is retried if the code is retriable, and
fails otherwise."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.client.errors import (
    ClientError,
    CommitFailed,
    FencedInstance,
    InvalidSessionTimeout,
    JoinRefused,
    RebalanceInProgress,
    ResponseError,
)
from pybroker.errors import ErrorCode

NO_GENERATION: Final = -1


class MemberState(enum.Enum):
    """The state of a group member."""

    OUTSIDE = "in no generation; it owns no partitions"
    JOINING = "JoinGroup or SyncGroup is in flight; no heartbeats are sent"
    STABLE = "in a generation; heartbeats are sent"


class Next(enum.Enum):
    """The reaction of a member to a response of its coordinator."""

    GO_ON = "it worked"
    AGAIN = "send the same request again after a backoff"
    FIND = "the coordinator has moved or is unreachable: look it up, then send the request again"
    REJOIN = "the group rebalances: join again as the same member"
    TAKE_ID = "join again at once with the id in the answer"
    LOST = "the member is not in the group's generation and owns no partitions: join again"
    GIVE_UP = "the error is final"


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a member in its requests. Without membership, the generation is -1 and the
    member id empty."""

    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


_COORDINATOR: Final = {
    ErrorCode.NONE: Next.GO_ON,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Next.AGAIN,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Next.FIND,
    ErrorCode.NOT_COORDINATOR: Next.FIND,
}
JOIN: Final[Mapping[ErrorCode, Next]] = {
    **_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS: Next.AGAIN,
    ErrorCode.MEMBER_ID_REQUIRED: Next.TAKE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID: Next.LOST,
}
SYNC: Final[Mapping[ErrorCode, Next]] = {
    **_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS: Next.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: Next.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: Next.LOST,
}
HEARTBEAT: Final[Mapping[ErrorCode, Next]] = SYNC
COMMIT: Final[Mapping[ErrorCode, Next]] = {
    **_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: Next.FIND,
    ErrorCode.REBALANCE_IN_PROGRESS: Next.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: Next.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: Next.LOST,
}
FETCH_OFFSETS: Final[Mapping[ErrorCode, Next]] = _COORDINATOR


def decide(table: Mapping[ErrorCode, Next], code: ErrorCode) -> Next:
    """Return the member's reaction to an error code. `table` is the table of the request."""
    return table.get(code, Next.AGAIN if code.retriable else Next.GIVE_UP)


def forgets_member_id(code: ErrorCode) -> bool:
    """Return whether a member that lost its membership by this error code needs a new member id."""
    return code != ErrorCode.ILLEGAL_GENERATION


def refusal(group_id: str, instance_id: str | None, code: ErrorCode) -> ClientError:
    """Return the exception for a final error code (`Next.GIVE_UP`)."""
    match code:
        case ErrorCode.FENCED_INSTANCE_ID:
            return FencedInstance(
                group_id,
                f"another member has joined with group.instance.id {instance_id}: set a "
                "different group.instance.id for each process",
            )
        case ErrorCode.INVALID_SESSION_TIMEOUT:
            return InvalidSessionTimeout(
                group_id,
                code,
                "the coordinator refuses the session.timeout.ms of this consumer: set it to a value"
                " from the broker's group.min.session.timeout.ms to its"
                " group.max.session.timeout.ms",
            )
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return JoinRefused(
                group_id,
                code,
                "no assignor in partition.assignment.strategy of this consumer is supported by all"
                " other members of the group, or these members are not consumers: use an assignor"
                " that all members have, or another group.id",
            )
        case ErrorCode.GROUP_MAX_SIZE_REACHED | ErrorCode.INVALID_GROUP_ID:
            return JoinRefused(group_id, code, code.text)
        case _:
            return ResponseError(code, f"group {group_id}: {code.text}")


def commit_refusal(group_id: str, step: Next, code: ErrorCode, identity: Identity) -> ClientError:
    """Return the exception for a commit that the coordinator rejected with `code`."""
    if step is Next.REJOIN:
        return rebalancing(group_id)
    if step is Next.LOST and identity.member_id:
        return no_member(group_id)
    if step is Next.LOST:
        return CommitFailed(
            group_id,
            "the offsets were not committed: the group has members, and a consumer "
            "that uses assign() may commit only to a group without members. Use "
            "another group.id, or subscribe()",
        )
    return refusal(group_id, identity.instance_id, code)


def rebalancing(group_id: str) -> RebalanceInProgress:
    """Return the exception for a commit during a rebalance."""
    return RebalanceInProgress(
        group_id,
        "the offsets were not committed, because the group is rebalancing: call "
        "getmany(), then commit the offsets of the partitions that are still "
        "assigned",
    )


def no_member(group_id: str) -> CommitFailed:
    """Return the exception for a commit by a consumer that is no longer a member of the group."""
    return CommitFailed(
        group_id,
        "the offsets were not committed: the group has rebalanced without this "
        "member, so other members may own its partitions. If the time between "
        "two calls of getmany() was too long, raise max.poll.interval.ms or "
        "lower max.poll.records",
    )
