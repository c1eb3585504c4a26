"""The life of a partition as the controller sees it: four statuses, a table of legal moves, and the
writes of its state.

A decision (`decisions.py`) is a `StateWrite`. Only when the write is stored does `stored` make the
new `Partition`. Nothing here waits, writes or logs.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pybroker.errors import PybrokerError
from pybroker.model import NO_LEADER, Broker, PartitionState, TopicPartition

NO_VERSION: Final = -1


class PartitionStatus(enum.Enum):
    NON_EXISTENT = "NonExistent"
    """Never created, or deleted."""
    NEW = "New"
    """Assigned, but it never had a leader: it has no state node."""
    ONLINE = "Online"
    """It has a leader that the controller believes to be alive."""
    OFFLINE = "Offline"
    """It had a leader whose broker has ended or was restarted."""


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
"""Target -> the statuses from which it may be reached."""


class IllegalMove(PybrokerError):
    """The controller tried a move that is not in the table: its context is wrong and has to be read
    again."""


@dataclass(frozen=True, slots=True)
class StateNode:
    """The content of a state node. `data` is its text, so that a rewrite keeps unknown keys.
    `written` is its mzxid, which orders its last write among all writes to ZooKeeper."""

    state: PartitionState
    version: int
    written: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition in the controller's context.

    `version` is the version of the state node (the partition epoch), NO_VERSION while there is no
    node. `data` is the node's text.
    Invariant: `state` is None exactly in the statuses NonExistent and New.
    """

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    status: PartitionStatus = PartitionStatus.NON_EXISTENT
    state: PartitionState | None = None
    version: int = NO_VERSION
    data: bytes = field(default=b"", repr=False, compare=False)

    def moved(self, target: PartitionStatus) -> Partition:
        """Return the same partition in status `target`. Raises IllegalMove."""
        if self.status not in LEGAL_MOVES[target]:
            raise IllegalMove(
                f"partition={self.topic_partition} cannot go from {self.status.value}"
                f" to {target.value}"
            )
        return dataclasses.replace(self, status=target)


class Reason(enum.Enum):
    """The reason for which a state is written; the journal uses the values."""

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
    """A write of `state` to the partition's state node: set it at `expected_version`, or create it
    if that is NO_VERSION. `unclean`: the write may lose committed records. `incarnations`: pairs
    (broker id, version of its incarnation node) that must still hold: none of these brokers has
    begun a new incarnation."""

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
    """Return a partition as a new controller reads it; `node` is None if it has no state node.

    A leader that registered after the state was last written is not the process that was elected.
    Its partition is Offline, so that the restarted leader gets a new leader epoch and is not
    confused with the process before (KIP-380's bounce, seen across a controller failover).
    """
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
    """Return the members of the ISR whose brokers registered after the state was last written: they
    are not the processes that were known to be in sync."""
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
