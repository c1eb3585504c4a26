"""The controller's events. An event tells what may have changed; its handler reads the present
data. Events are hashable, because the controller's queue drops an event that equals a waiting
event."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from pybroker.errors import ErrorCode
from pybroker.model import NO_LEADER, TopicPartition


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """/controller may have been created, changed or deleted."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """The children of /brokers/ids changed."""


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The children of /brokers/topics changed."""


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """The node of one topic changed or was removed."""

    topic: str


@dataclass(frozen=True, slots=True)
class DeletionRequested:
    """The children of /admin/delete_topics changed."""


@dataclass(frozen=True, slots=True)
class ReplicasDeleted:
    """A broker has confirmed that it deleted these replicas. `broker_epoch` is the broker's epoch
    (KIP-380) when it confirmed."""

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
    """A broker answered LeaderAndIsr with KAFKA_STORAGE_ERROR for these partitions. `broker_epoch`
    is the broker's epoch (KIP-380) when it answered."""

    broker_id: int
    broker_epoch: int
    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReplicasAccepted:
    """A broker has accepted LeaderAndIsr for these partitions after it refused them."""

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
    """It is time to check whether the preferred replicas lead."""


class ElectionType(enum.IntEnum):
    """The election type of ElectLeaders (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Election:
    """The result of one leader election. `leader` is valid if `code` is NONE. Otherwise there was
    no election, and `message` may describe the reason."""

    code: ErrorCode
    message: str | None = None
    leader: int = NO_LEADER


@dataclass(frozen=True, slots=True, eq=False)
class ElectionAsked:
    """A caller asks for leader elections and awaits `reply`."""

    election_type: ElectionType
    topic_partitions: tuple[TopicPartition, ...]
    reply: asyncio.Future[Mapping[TopicPartition, Election]]


@dataclass(frozen=True, slots=True, eq=False)
class HandoverAsked:
    """A broker is about to stop (ControlledShutdown). `broker_epoch` is -1 if the request has no
    broker epoch. `reply` gets the replicated partitions that the broker still leads."""

    broker_id: int
    broker_epoch: int
    reply: asyncio.Future[tuple[TopicPartition, ...]]


@dataclass(frozen=True, slots=True)
class PoliciesChanged:
    """unclean.leader.election.enable or min.insync.replicas may have changed for `topics` (None:
    for all topics)."""

    topics: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Retry:
    """It is time to retry the failed work (`retries.py`)."""


@dataclass(frozen=True, slots=True)
class Deposed:
    """A broker refused a command, because it has received commands of a newer controller."""


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
