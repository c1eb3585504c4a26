"""The life of a group: five states, a table of legal moves, and what each state answers to each
request.

Only `Group.move_to` changes a state. The tables are also the documentation (`docs/groups.rst`), and
the scripts of the tests have one step for every cell of `ANSWERS`. Nothing here decides anything.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pybroker.errors import PybrokerError


class GroupState(enum.Enum):
    """The values are Kafka's names, as in DescribeGroups."""

    EMPTY = "Empty"
    """Nobody is in it: only its generation and its committed offsets are kept."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """A new generation is to begin: members have to join again, late ones are left behind."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of the new generation are known; its leader works out who gets what."""
    STABLE = "Stable"
    """Everybody has an assignment, which is stored."""
    DEAD = "Dead"
    """It is being deleted; Empty again if that fails."""


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
"""Target -> the states from which it may be reached."""


class IllegalMove(PybrokerError):
    """A decision tried a move that the table does not have: a fault of this program."""


class Asked(enum.Enum):
    """The requests that a group answers by its state. Whoever is no member gets UNKNOWN_MEMBER_ID
    (25), another generation ILLEGAL_GENERATION (22), a replaced static member FENCED_INSTANCE_ID
    (82), in every state but Dead, whatever the cells say."""

    JOIN = "JoinGroup of a new member"
    REJOIN = "JoinGroup of a member"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    COMMIT = "OffsetCommit of a member"
    SIMPLE_COMMIT = "OffsetCommit of no member"
    DESCRIBE = "DescribeGroups"
    DELETE = "DeleteGroups"


_RETRY: Final = "15: ask again"
_IS_MEMBER: Final = "taken out, and the others rebalance"

ANSWERS: Final[Mapping[GroupState, Mapping[Asked, str]]] = MappingProxyType(
    {
        GroupState.EMPTY: {
            Asked.JOIN: "begins a rebalance after the initial delay",
            Asked.REJOIN: "25: nobody is a member",
            Asked.SYNC: "25: nobody is a member",
            Asked.HEARTBEAT: "25: nobody is a member",
            Asked.LEAVE: "25: nobody is a member",
            Asked.COMMIT: "25: nobody is a member",
            Asked.SIMPLE_COMMIT: "taken",
            Asked.DESCRIBE: "no members",
            Asked.DELETE: "deleted, with its offsets",
        },
        GroupState.PREPARING_REBALANCE: {
            Asked.JOIN: "waits for the new generation",
            Asked.REJOIN: "waits for the new generation",
            Asked.SYNC: "27: join again",
            Asked.HEARTBEAT: "27: join again; the member lives",
            Asked.LEAVE: "taken out, and no longer waited for",
            Asked.COMMIT: "taken; the member lives",
            Asked.SIMPLE_COMMIT: "25: only members may",
            Asked.DESCRIBE: "members without assignments",
            Asked.DELETE: "68: it has members",
        },
        GroupState.COMPLETING_REBALANCE: {
            Asked.JOIN: "begins the next rebalance",
            Asked.REJOIN: "this generation again; with other metadata the next rebalance",
            Asked.SYNC: "waits for the leader's assignment",
            Asked.HEARTBEAT: "0; the member lives",
            Asked.LEAVE: _IS_MEMBER,
            Asked.COMMIT: "27: join again",
            Asked.SIMPLE_COMMIT: "25: only members may",
            Asked.DESCRIBE: "members without assignments",
            Asked.DELETE: "68: it has members",
        },
        GroupState.STABLE: {
            Asked.JOIN: "begins a rebalance",
            Asked.REJOIN: "this generation again; of the leader or with other metadata a rebalance",
            Asked.SYNC: "the member's assignment",
            Asked.HEARTBEAT: "0; the member lives",
            Asked.LEAVE: _IS_MEMBER,
            Asked.COMMIT: "taken; the member lives",
            Asked.SIMPLE_COMMIT: "25: only members may",
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
"""What each state answers; numbers are error codes."""
