"""The life of a partition as the controller sees it: four statuses, a table of legal moves, and
what is to be stored.

A decision (`decisions.py`) is a `StateWrite`; only when that is stored does `stored` give the new
`Partition`. Nothing here waits, writes or logs.
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
    """Assigned, but nobody has led it yet: it has no state node."""
    ONLINE = "Online"
    """It has a leader that we believe to be alive."""
    OFFLINE = "Offline"
    """It had a leader, and that one is gone or was restarted."""


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
    """The controller tried a move that the table does not have: its picture is wrong, and it must
    be built again."""


@dataclass(frozen=True, slots=True)
class StateNode:
    """What a state node says. `data` is its text, so that a rewrite keeps keys that we do not know;
    `written` its mzxid: when it was last written, in the order of the whole service."""

    state: PartitionState
    version: int
    written: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition in the controller's picture.

    `version` is the state node's (the partition epoch), NO_VERSION while there is none; `data` its
    text.
    Invariant: `state` is None exactly in the statuses NonExistent and New.
    """

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    status: PartitionStatus = PartitionStatus.NON_EXISTENT
    state: PartitionState | None = None
    version: int = NO_VERSION
    data: bytes = field(default=b"", repr=False, compare=False)

    def moved(self, target: PartitionStatus) -> Partition:
        """The same partition in status `target`. Raises IllegalMove."""
        if self.status not in LEGAL_MOVES[target]:
            raise IllegalMove(
                f"partition={self.topic_partition} cannot go from {self.status.value}"
                f" to {target.value}"
            )
        return dataclasses.replace(self, status=target)


class Reason(enum.Enum):
    """Why a state is written; in these words in the journal."""

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
    """Store `state` in the partition's state node: set it at `expected_version`, or create it when
    that is NO_VERSION. `unclean`: committed records may be given up by this. `incarnations`: of
    brokers, by id, that must not have begun anew."""

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
    """A partition as a new controller finds it; `node` is None if it has no state node.

    A leader that registered after the state was last written is not the process that was
    appointed: such a partition is Offline, so that the restarted leader gets a new leader epoch
    and may not be confused with what it was before (KIP-380's bounce, seen across a fail-over).
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
    """The members of the ISR whose brokers have registered after the state was last written: they
    are not the processes that were known to be in sync."""
    return frozenset(
        replica
        for replica in node.state.isr
        if replica in brokers and brokers[replica].epoch > node.written
    )


def stored(partition: Partition, state: PartitionState, version: int, data: bytes) -> Partition:
    """The partition after `state` was stored; `version` and `data` are what its node has now."""
    status = PartitionStatus.OFFLINE if state.leader == NO_LEADER else PartitionStatus.ONLINE
    return dataclasses.replace(partition.moved(status), state=state, version=version, data=data)
