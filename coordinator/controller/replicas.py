"""The life of a replica while its topic is being deleted: statuses, and a table of legal moves.

While its topic is kept, a replica is as its broker is, and nothing about it has to be remembered.
Nothing here waits, writes or logs.
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
    """Not taken up yet, or its topic is gone."""
    ONLINE = "Online"
    """On a live broker."""
    OFFLINE = "Offline"
    """Its broker is away."""
    DELETION_STARTED = "DeletionStarted"
    """Its broker has been told to remove it, and has not confirmed: only such are waited for."""
    DELETION_SUCCESSFUL = "DeletionSuccessful"
    """Its broker has confirmed."""
    DELETION_INELIGIBLE = "DeletionIneligible"
    """Its broker is away, and is told when it comes back while the topic still goes."""


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
"""Target -> the statuses from which it may be reached. A broker that had confirmed and was started
again is told again."""

ReplicaKey = tuple[int, TopicPartition]
"""A broker and the partition of which it has a replica."""


def moved(key: ReplicaKey, status: ReplicaStatus, target: ReplicaStatus) -> ReplicaStatus:
    """`target`, if the replica may go there from `status`. Raises IllegalMove."""
    if status not in LEGAL_MOVES[target]:
        raise IllegalMove(
            f"replica={key[1]} broker={key[0]} cannot go from {status.value} to {target.value}"
        )
    return target
