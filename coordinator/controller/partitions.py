"""The controller's data about one partition: its status, the allowed transitions, and `StateWrite`,
a write to the partition's state node. This module does no I/O."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pybroker.errors import IllegalMove
from pybroker.model import NO_LEADER, Broker, PartitionState, TopicPartition

NO_VERSION: Final = -1


class PartitionStatus(enum.Enum):
    NON_EXISTENT = "NonExistent"
    """The partition was never created, or it is deleted."""
    NEW = "New"
    """The partition is assigned to brokers, and has no state node."""
    ONLINE = "Online"
    """The state node names a leader whose broker is live in the controller's context."""
    OFFLINE = "Offline"
    """The state node names no leader, or the leader's broker has ended or was restarted."""


LEGAL_MOVES: Final[Mapping[PartitionStatus, frozenset[PartitionStatus]]] = MappingProxyType(
    {
        PartitionStatus.NEW: frozenset({PartitionStatus.NON_EXISTENT}),
        PartitionStatus.ONLINE: frozenset(
            {PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}
        ),
        PartitionStatus.OFFLINE: frozenset(
            {PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}
        ),
        PartitionStatus.NON_EXISTENT: frozenset({PartitionStatus.OFFLINE}),
    }
)
"""Target status -> the statuses from which a partition may move to it."""


@dataclass(frozen=True, slots=True)
class StateNode:
    """The content of a state node. `data` is the node's text: when the node is written again, the
    unknown keys in this text are kept. `written` is the node's mzxid."""

    state: PartitionState
    version: int
    written: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition in the controller's context. `version` is the version of the state node (the
    partition epoch), `data` the node's text. Invariant: `state` is None if and only if the status
    is NonExistent or New."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    status: PartitionStatus = PartitionStatus.NON_EXISTENT
    state: PartitionState | None = None
    version: int = NO_VERSION
    data: bytes = field(default=b"", repr=False, compare=False)

    def moved(self, target: PartitionStatus) -> Partition:
        """Return the partition in status `target`. Raises IllegalMove."""
        if self.status not in LEGAL_MOVES[target]:
            raise IllegalMove(
                f"partition={self.topic_partition} cannot go from {self.status.value}"
                f" to {target.value}"
            )
        return dataclasses.replace(self, status=target)


class Reason(enum.Enum):
    """The reason for a write of a partition's state. The decision journal contains the enum
    value."""

    NEW_PARTITION = "new-partition"
    LEADER_LOST = "leader-lost"
    REPLICA_LOST = "replica-lost"
    NOBODY_MAY_LEAD = "nobody-may-lead"
    UNCLEAN_ELECTION = "unclean-election"
    POWER_LOSS = "power-loss"
    PREFERRED_ELECTION = "preferred-election"
    CONTROLLED_SHUTDOWN = "controlled-shutdown"


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A write of `state` to the partition's state node. `expected_version` is the version of the
    replaced node; NO_VERSION: the write creates the node. `unclean`: the write may lose committed
    records.

    `incarnations` has pairs (broker id, version of /pybroker/incarnations/<broker id>). Each
    registration of a broker raises the version. ZooKeeper refuses the write if a version differs.
    """

    topic_partition: TopicPartition
    state: PartitionState
    expected_version: int
    reason: Reason
    unclean: bool = False
    incarnations: tuple[tuple[int, int], ...] = ()

    @property
    def creates(self) -> bool:
        return self.expected_version == NO_VERSION


def found(
    topic_partition: TopicPartition,
    replicas: tuple[int, ...],
    node: StateNode | None,
    brokers: Mapping[int, Broker],
) -> Partition:
    """Return the partition for a controller's context. If the leader's broker registered after the
    last write of the state, the partition is Offline: the restarted leader needs a new leader epoch
    (KIP-380)."""
    partition = Partition(topic_partition, replicas).moved(PartitionStatus.NEW)
    if node is None:
        return partition
    leader = node.state.leader
    serving = leader in brokers and leader not in registered_since(node, brokers)
    return dataclasses.replace(
        partition.moved(PartitionStatus.ONLINE if serving else PartitionStatus.OFFLINE),
        state=node.state,
        version=node.version,
        data=node.data,
    )


def registered_since(node: StateNode, brokers: Mapping[int, Broker]) -> frozenset[int]:
    """Return the members of the ISR in `node` whose brokers registered after this state was
    written."""
    return frozenset(
        replica
        for replica in node.state.isr
        if replica in brokers and brokers[replica].epoch > node.written
    )


def stored(partition: Partition, state: PartitionState, version: int, data: bytes) -> Partition:
    """Return the partition after `state` was stored; `version` and `data` are those of the written
    node."""
    status = PartitionStatus.OFFLINE if state.leader == NO_LEADER else PartitionStatus.ONLINE
    return dataclasses.replace(partition.moved(status), state=state, version=version, data=data)
