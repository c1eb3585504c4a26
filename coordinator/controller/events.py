"""What can happen to a controller. Events carry no data that could be stale: the handler reads.

Equal events that wait in the queue are one event, therefore all are frozen and hashable.
"""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.model import TopicPartition


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
    | ReplicasRefused
    | ReplicasAccepted
    | Retry
    | Deposed
)
