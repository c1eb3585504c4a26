"""What can happen to a controller. Events carry no data that could be stale: the handler reads.

Equal events that wait in the queue are one event, therefore all are frozen and hashable.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from pybroker.errors import ErrorCode
from pybroker.model import NO_LEADER, TopicPartition


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """/controller was created, changed or deleted; or it is time to look and, if it is vacant, to
    stand for election."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """The children of /brokers/ids changed."""


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The children of /brokers/topics changed."""


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """The node of one topic changed (partitions were added, for one) or went away."""

    topic: str


@dataclass(frozen=True, slots=True)
class DeletionRequested:
    """The children of /admin/delete_topics changed."""


@dataclass(frozen=True, slots=True)
class ReplicasDeleted:
    """A broker (in the incarnation `broker_epoch`) has confirmed that these replicas are gone."""

    broker_id: int
    broker_epoch: int
    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class LogDirsFailed:
    """The children of /log_dir_event_notification changed."""


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The children of /isr_change_notification changed."""


@dataclass(frozen=True, slots=True)
class ReplicasRefused:
    """A broker (in the incarnation `broker_epoch`) could not open these replicas."""

    broker_id: int
    broker_epoch: int
    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReplicasAccepted:
    """A broker has opened these replicas, which it had refused before."""

    broker_id: int
    broker_epoch: int
    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class PreferredElectionRequested:
    """/admin/preferred_replica_election was created, changed or deleted."""


@dataclass(frozen=True, slots=True)
class ReassignmentRequested:
    """/admin/reassign_partitions was created, changed or deleted."""


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """It is time to look whether leaders are where they are preferred."""


class ElectionType(enum.IntEnum):
    """Of ElectLeaders (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Election:
    """What became of an election: `code` NONE and who leads now, or why there was none."""

    code: ErrorCode
    message: str | None = None
    leader: int = NO_LEADER


@dataclass(frozen=True, slots=True, eq=False)
class ElectionAsked:
    """Somebody wants leaders elected, and waits for `reply`."""

    election_type: ElectionType
    topic_partitions: tuple[TopicPartition, ...]
    reply: asyncio.Future[Mapping[TopicPartition, Election]]


@dataclass(frozen=True, slots=True, eq=False)
class HandoverAsked:
    """A broker (in the incarnation `broker_epoch`, -1 if it does not say) is about to stop and
    waits for `reply`: the replicated partitions that it still leads."""

    broker_id: int
    broker_epoch: int
    reply: asyncio.Future[tuple[TopicPartition, ...]]


@dataclass(frozen=True, slots=True)
class PoliciesChanged:
    """The configuration of these topics (None: perhaps of any) has changed, on which elections
    depend."""

    topics: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again what failed."""


@dataclass(frozen=True, slots=True)
class Deposed:
    """A broker refused a command because it has seen a newer controller."""


Event = (
    ControllerChanged
    | BrokersChanged
    | TopicsChanged
    | TopicChanged
    | DeletionRequested
    | ReplicasDeleted
    | LogDirsFailed
    | IsrChanged
    | ReplicasRefused
    | ReplicasAccepted
    | PreferredElectionRequested
    | ReassignmentRequested
    | RebalanceDue
    | ElectionAsked
    | HandoverAsked
    | PoliciesChanged
    | Retry
    | Deposed
)
