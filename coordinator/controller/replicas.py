"""The life of a replica while its topic is being deleted: statuses, and a table of legal moves.

While its topic is kept, a replica has no status of its own: it is online if its broker is. Nothing
here waits, writes or logs.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pybroker.coordinator.controller.partitions import IllegalMove
from pybroker.model import TopicPartition


class ReplicaStatus(enum.Enum):
    NON_EXISTENT = "NonExistent"
    """Before its deletion is considered, or after its topic is removed."""
    ONLINE = "Online"
    """Its broker is live."""
    OFFLINE = "Offline"
    """Its broker is not live."""
    DELETION_STARTED = "DeletionStarted"
    """Its live broker has to delete it and has not confirmed: the deletion of the topic waits."""
    DELETION_SUCCESSFUL = "DeletionSuccessful"
    """Its broker has confirmed that it deleted the replica."""
    DELETION_INELIGIBLE = "DeletionIneligible"
    """Its broker is not live. The broker gets StopReplica if it returns before the topic is
    removed."""


LEGAL_MOVES: Final[Mapping[ReplicaStatus, frozenset[ReplicaStatus]]] = MappingProxyType(
    {
        ReplicaStatus.ONLINE: frozenset({ReplicaStatus.NON_EXISTENT}),
        ReplicaStatus.OFFLINE: frozenset({ReplicaStatus.NON_EXISTENT}),
        ReplicaStatus.DELETION_STARTED: frozenset(
            {
                ReplicaStatus.ONLINE,
                ReplicaStatus.DELETION_SUCCESSFUL,
                ReplicaStatus.DELETION_INELIGIBLE,
            }
        ),
        ReplicaStatus.DELETION_SUCCESSFUL: frozenset({ReplicaStatus.DELETION_STARTED}),
        ReplicaStatus.DELETION_INELIGIBLE: frozenset(
            {ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED}
        ),
        ReplicaStatus.NON_EXISTENT: frozenset(
            {ReplicaStatus.DELETION_SUCCESSFUL, ReplicaStatus.DELETION_INELIGIBLE}
        ),
    }
)
"""Target -> the statuses from which it may be reached. A broker that confirmed and then restarted
gets StopReplica again."""

ReplicaKey = tuple[int, TopicPartition]
"""(broker id, partition): the replica of the partition on the broker."""


def moved(key: ReplicaKey, status: ReplicaStatus, target: ReplicaStatus) -> ReplicaStatus:
    """Return `target` if the replica may move there from `status`. Raises IllegalMove."""
    if status not in LEGAL_MOVES[target]:
        raise IllegalMove(
            f"replica={key[1]} broker={key[0]} cannot go from {status.value} to {target.value}"
        )
    return target
