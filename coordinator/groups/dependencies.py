"""The dependencies of a group coordinator: the mirror of groups in ZooKeeper, the
configuration and the counters."""

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
    """Writes the members and assignments of a shard's groups to ZooKeeper, and decides whether a
    group may get its first member."""

    def members_changed(self, group: GroupView) -> None:
        """Schedule the write of the group's members and assignments to ZooKeeper. For a group in
        state Dead, schedule the removal of its nodes instead. Never waits."""

    async def may_begin(self, group_id: str) -> ErrorCode:
        """Return NONE if a first member may join the group. Return INCONSISTENT_GROUP_PROTOCOL if
        consumers of Kafka 0.8 use the group id. Raises BrokerError."""


class UnmirroredGroups:
    """The `Membership` to use if the broker does not copy the members of groups to ZooKeeper."""

    def members_changed(self, group: GroupView) -> None:
        """Do nothing."""

    async def may_begin(self, group_id: str) -> ErrorCode:
        return ErrorCode.NONE


def _has_room(size: int) -> None: ...


@dataclass(frozen=True, slots=True)
class GroupDependencies:
    """The dependencies that all shards of a broker share."""

    config: BrokerConfig = field(default_factory=BrokerConfig)
    counters: GroupCounters = field(default_factory=GroupCounters)
    take_memory: Callable[[int], None] = _has_room
    """Function that reserves a number of bytes for members, or raises BrokerError
    (`memory_limit.py`)."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts that decide when a group's offsets expire. `state_ms`: when the group entered its
    state, in ms since 1970, -1 if unknown. `topics`: the subscribed topics, None if unknown."""

    state: GroupState
    protocol_type: str
    state_ms: int
    topics: frozenset[str] | None
