"""The state machine of a group: five states, a table of the allowed transitions, and the answer of
each state to each request.

Only `Group.move_to` changes a state. `docs/groups.rst` shows the tables, and the test scripts have
one step for every cell of `ANSWERS`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pybroker.errors import PybrokerError


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


class IllegalMove(PybrokerError):
    """The error of a transition that is not in the table: a bug."""


class Asked(enum.Enum):
    """The requests whose answer depends on the group's state. In every state except Dead, these
    answers come first: an unknown member gets UNKNOWN_MEMBER_ID (25), a request of another
    generation ILLEGAL_GENERATION (22), and a replaced static member FENCED_INSTANCE_ID (82)."""

    JOIN = "JoinGroup of a new member"
    REJOIN = "JoinGroup of a member"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    COMMIT = "OffsetCommit of a member"
    SIMPLE_COMMIT = "OffsetCommit of no member"
    DESCRIBE = "DescribeGroups"
    DELETE = "DeleteGroups"


_RETRY: Final = "15: retry"
_IS_MEMBER: Final = "removed, and the others rebalance"

ANSWERS: Final[Mapping[GroupState, Mapping[Asked, str]]] = MappingProxyType(
    {
        GroupState.EMPTY: {
            Asked.JOIN: "begins a rebalance after the initial delay",
            Asked.REJOIN: "25: the group has no members",
            Asked.SYNC: "25: the group has no members",
            Asked.HEARTBEAT: "25: the group has no members",
            Asked.LEAVE: "25: the group has no members",
            Asked.COMMIT: "25: the group has no members",
            Asked.SIMPLE_COMMIT: "accepted",
            Asked.DESCRIBE: "no members",
            Asked.DELETE: "deleted, with its offsets",
        },
        GroupState.PREPARING_REBALANCE: {
            Asked.JOIN: "waits for the new generation",
            Asked.REJOIN: "waits for the new generation",
            Asked.SYNC: "27: join again",
            Asked.HEARTBEAT: "27: join again; renews the session",
            Asked.LEAVE: "removed; the rebalance no longer waits for it",
            Asked.COMMIT: "accepted; renews the session",
            Asked.SIMPLE_COMMIT: "25: only members may commit",
            Asked.DESCRIBE: "members without assignments",
            Asked.DELETE: "68: it has members",
        },
        GroupState.COMPLETING_REBALANCE: {
            Asked.JOIN: "begins the next rebalance",
            Asked.REJOIN: "this generation again; the next rebalance for new metadata",
            Asked.SYNC: "waits for the leader's assignment",
            Asked.HEARTBEAT: "0; renews the session",
            Asked.LEAVE: _IS_MEMBER,
            Asked.COMMIT: "27: join again",
            Asked.SIMPLE_COMMIT: "25: only members may commit",
            Asked.DESCRIBE: "members without assignments",
            Asked.DELETE: "68: it has members",
        },
        GroupState.STABLE: {
            Asked.JOIN: "begins a rebalance",
            Asked.REJOIN: "this generation again; a rebalance for the leader or new metadata",
            Asked.SYNC: "the member's assignment",
            Asked.HEARTBEAT: "0; renews the session",
            Asked.LEAVE: _IS_MEMBER,
            Asked.COMMIT: "accepted; renews the session",
            Asked.SIMPLE_COMMIT: "25: only members may commit",
            Asked.DESCRIBE: "members and assignments",
            Asked.DELETE: "68: it has members",
        },
        GroupState.DEAD: {
            Asked.JOIN: _RETRY,
            Asked.REJOIN: _RETRY,
            Asked.SYNC: _RETRY,
            Asked.HEARTBEAT: _RETRY,
            Asked.LEAVE: _RETRY,
            Asked.COMMIT: _RETRY,
            Asked.SIMPLE_COMMIT: _RETRY,
            Asked.DESCRIBE: "no members",
            Asked.DELETE: "69: there is no such group",
        },
    }
)
"""State -> request -> the answer. Numbers are error codes."""
