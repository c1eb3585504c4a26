"""What the coordinator of groups is given besides its shard: the seams to those who look after
classic consumers in ZooKeeper, and the numbers that it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.calls import GroupView
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode
from pybroker.metrics import GroupCounters


class Membership(Protocol):
    """What a shard says to, and asks of, whoever keeps ZooKeeper's picture of its groups."""

    def members_changed(self, group: GroupView) -> None:
        """Somebody has left or was left behind, a static member has another id, or all have their
        assignments. Members of a group that is not Stable have none; one without members is Empty,
        or Dead if nothing is left of it. Also called for every group when a shard is loaded. Never
        waits."""

    async def may_begin(self, group_id: str) -> ErrorCode:
        """Asked before somebody joins a group that has no members: NONE, or why not, as
        INCONSISTENT_GROUP_PROTOCOL where classic consumers are at work under that name. May raise
        BrokerError."""


class NobodyElse:
    """The membership of a broker whose groups are not seen in ZooKeeper."""

    def members_changed(self, group: GroupView) -> None:
        """Nobody wants to know."""

    async def may_begin(self, group_id: str) -> ErrorCode:
        return ErrorCode.NONE


def _has_room(size: int) -> None:
    """There always is."""


@dataclass(frozen=True, slots=True)
class GroupDependencies:
    """What all shards of a broker share."""

    config: BrokerConfig = field(default_factory=BrokerConfig)
    counters: GroupCounters = field(default_factory=GroupCounters)
    take_room: Callable[[int], None] = _has_room
    """Takes so many bytes of memory for members, or raises BrokerError (`room.py`)."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What those need to know who expire or delete offsets. `state_ms`: since when it is in its
    state, in ms since 1970, -1 if unknown; `topics`: what members read, None if nobody knows."""

    state: GroupState
    protocol_type: str
    state_ms: int
    topics: frozenset[str] | None
