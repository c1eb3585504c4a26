"""The state machine of a group: five states, the allowed transitions, and the answer of each state
to each request. `docs/groups.rst` shows the tables."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class GroupState(enum.Enum):
    """The state of a group. The values are Kafka's names, as in DescribeGroups."""

    EMPTY = "Empty"
    """The group has no members: only its generation and its committed offsets are kept."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """A rebalance: members have to rejoin, and members that are too late are removed."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of the new generation are known; the group's leader computes the assignment."""
    STABLE = "Stable"
    """The assignment of all members is stored."""
    DEAD = "Dead"
    """The group is being deleted; it is Empty again if that fails."""


LEGAL_MOVES: Final[Mapping[GroupState, frozenset[GroupState]]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
        GroupState.PREPARING_REBALANCE: frozenset(
            {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        ),
        GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
        GroupState.DEAD: frozenset({GroupState.EMPTY}),
    }
)
"""Target state -> the states from which a group may move to it."""


class GroupRequest(enum.Enum):
    """The requests whose answer depends on the group's state. In every state but Dead, a wrong
    member id or instance id (error 25 or 82) and a wrong generation (22) are refused first."""

    JOIN = "JoinGroup of a new member"
    REJOIN = "JoinGroup of a member"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    COMMIT = "OffsetCommit of a member"
    SIMPLE_COMMIT = "OffsetCommit of a consumer that is not a member"
    DESCRIBE = "DescribeGroups"
    DELETE = "DeleteGroups"


_RETRY: Final = "15: retry"
_IS_MEMBER: Final = "removes the member, and the others rebalance"

ANSWERS: Final[Mapping[GroupState, Mapping[GroupRequest, str]]] = MappingProxyType(
    {
        GroupState.EMPTY: {
            GroupRequest.JOIN: "begins a rebalance, which first waits"
            " ``group.initial.rebalance.delay.ms`` for further members",
            GroupRequest.REJOIN: "25: the group has no members",
            GroupRequest.SYNC: "25: the group has no members",
            GroupRequest.HEARTBEAT: "25: the group has no members",
            GroupRequest.LEAVE: "25: the group has no members",
            GroupRequest.COMMIT: "25: the group has no members",
            GroupRequest.SIMPLE_COMMIT: "accepted",
            GroupRequest.DESCRIBE: "returns no members",
            GroupRequest.DELETE: "deletes the group with its offsets",
        },
        GroupState.PREPARING_REBALANCE: {
            GroupRequest.JOIN: "waits for the new generation",
            GroupRequest.REJOIN: "waits for the new generation",
            GroupRequest.SYNC: "27: join again",
            GroupRequest.HEARTBEAT: "27: join again; renews the session",
            GroupRequest.LEAVE: "removes the member; the rebalance no longer waits for it",
            GroupRequest.COMMIT: "accepted; renews the session",
            GroupRequest.SIMPLE_COMMIT: "25: only members may commit",
            GroupRequest.DESCRIBE: "returns the members without assignments",
            GroupRequest.DELETE: "68: the group has members",
        },
        GroupState.COMPLETING_REBALANCE: {
            GroupRequest.JOIN: "begins the next rebalance",
            GroupRequest.REJOIN: "begins the next rebalance if the member sends new metadata,"
            " else returns this generation again",
            GroupRequest.SYNC: "waits for the assignment of the group's leader",
            GroupRequest.HEARTBEAT: "0; renews the session",
            GroupRequest.LEAVE: _IS_MEMBER,
            GroupRequest.COMMIT: "27: join again",
            GroupRequest.SIMPLE_COMMIT: "25: only members may commit",
            GroupRequest.DESCRIBE: "returns the members without assignments",
            GroupRequest.DELETE: "68: the group has members",
        },
        GroupState.STABLE: {
            GroupRequest.JOIN: "begins a rebalance",
            GroupRequest.REJOIN: "begins a rebalance if the member is the group's leader or sends"
            " new metadata, else returns this generation again",
            GroupRequest.SYNC: "returns the member's assignment",
            GroupRequest.HEARTBEAT: "0; renews the session",
            GroupRequest.LEAVE: _IS_MEMBER,
            GroupRequest.COMMIT: "accepted; renews the session",
            GroupRequest.SIMPLE_COMMIT: "25: only members may commit",
            GroupRequest.DESCRIBE: "returns the members and their assignments",
            GroupRequest.DELETE: "68: the group has members",
        },
        GroupState.DEAD: {
            GroupRequest.JOIN: _RETRY,
            GroupRequest.REJOIN: _RETRY,
            GroupRequest.SYNC: _RETRY,
            GroupRequest.HEARTBEAT: _RETRY,
            GroupRequest.LEAVE: _RETRY,
            GroupRequest.COMMIT: _RETRY,
            GroupRequest.SIMPLE_COMMIT: _RETRY,
            GroupRequest.DESCRIBE: "returns no members",
            GroupRequest.DELETE: "69: there is no such group",
        },
    }
)
"""State -> request -> the answer. Numbers are error codes."""
