"""The status of a replica while its topic is being deleted, with the allowed transitions. A replica
of any other topic has no such status."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pybroker.errors import IllegalMove
from pybroker.model import TopicPartition


class ReplicaStatus(enum.Enum):
    NON_EXISTENT = "NonExistent"
    """Before the deletion of the replica begins, or after its topic is removed."""
    ONLINE = "Online"
    """The replica's broker is live."""
    OFFLINE = "Offline"
    """The replica's broker is not live."""
    DELETION_STARTED = "DeletionStarted"
    """The live broker was asked to delete the replica and has not confirmed. The deletion of the
    topic waits for the confirmation."""
    DELETION_SUCCESSFUL = "DeletionSuccessful"
    """The broker has confirmed that it deleted the replica."""
    DELETION_INELIGIBLE = "DeletionIneligible"
    """The replica's broker is not live. The broker gets StopReplica if it registers again before
    the topic is removed."""


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
"""Target status -> the statuses from which a replica may move to it. A broker that confirmed and
then restarted gets StopReplica again."""

ReplicaKey = tuple[int, TopicPartition]
"""(broker id, partition), which identifies a replica."""


def moved(key: ReplicaKey, status: ReplicaStatus, target: ReplicaStatus) -> ReplicaStatus:
    """Return the new status, `target`. Raises IllegalMove if LEGAL_MOVES does not list the change
    from `status` to `target`."""
    if status not in LEGAL_MOVES[target]:
        raise IllegalMove(
            f"replica={key[1]} broker={key[0]} cannot go from {status.value} to {target.value}"
        )
    return target
