"""The metadata of a cluster at one moment: brokers, topics and leaders."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pybroker.errors import ErrorCode
from pybroker.model import NO_EPOCH, NO_LEADER, NO_TOPIC_ID, TopicPartition
from pybroker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_CODES: Final = {int(code): code for code in ErrorCode}


@dataclass(frozen=True, slots=True)
class Node:
    """A broker, with the address that it advertises on the client's listener."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The metadata of a partition, with broker ids. `leader` is -1 without a leader, `leader_epoch`
    -1 if unknown."""

    topic_partition: TopicPartition
    error: ErrorCode
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """The metadata of a topic. If `error` is not NONE, the topic has no `partitions`."""

    name: str
    error: ErrorCode
    topic_id: uuid.UUID
    internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The immutable metadata of a cluster. `controller_id` is -1 without a controller. `complete`:
    whether the metadata of all topics was requested."""

    cluster_id: str | None = None
    controller_id: int = -1
    complete: bool = False
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)

    def partition(self, topic_partition: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(topic_partition.topic)
        return topic.partitions.get(topic_partition.partition) if topic else None

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """Return the broker id of the partition's leader. Return None if the partition has no
        leader, or the metadata does not have the leader's address."""
        info = self.partition(topic_partition)
        if info is None or info.leader == NO_LEADER or info.leader not in self.nodes:
            return None
        return info.leader

    def leader_problem(self, topic_partition: TopicPartition) -> str:
        """Return a message that says why `leader` returns None. Return an empty text if the
        partition has a leader or does not exist."""
        info = self.partition(topic_partition)
        if info is None or info.leader in self.nodes:
            return ""
        if info.leader != NO_LEADER:
            return (
                f"the leader of {topic_partition}, broker {info.leader}, is not among the "
                "live brokers in the metadata"
            )
        replicas = f"its replicas: {_ids(info.replicas)}; in sync: {_ids(info.isr)}"
        offline = f"; offline: {_ids(info.offline_replicas)}" if info.offline_replicas else ""
        return f"{topic_partition} has no leader ({replicas}{offline})"


def _ids(brokers: tuple[int, ...]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def error_code(number: int) -> ErrorCode:
    """Return the error code with this number; UNKNOWN_SERVER_ERROR if unknown."""
    return _CODES.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)


def view_of(response: MetadataResponse, *, complete: bool = False) -> ClusterView:
    """Return the metadata of a response. `complete`: the client asked for all topics."""
    return ClusterView(
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        complete=complete,
        nodes={
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        },
        topics={topic.name: _topic(topic) for topic in response.topics if topic.name is not None},
    )


def newer(known: ClusterView, fresh: ClusterView) -> ClusterView:
    """Return `fresh`, but keep later partition states of `known`: a client must not return to older
    metadata (KIP-320). If the topic id has changed, no partition state of the topic is kept."""
    topics = dict(fresh.topics)
    for name, topic in fresh.topics.items():
        before = known.topics.get(name)
        if before is None or before.topic_id != topic.topic_id:
            continue
        later = {
            number: info
            for number, info in before.partitions.items()
            if _is_later(info, topic.partitions.get(number), topic)
        }
        if later:
            topics[name] = replace(topic, partitions={**topic.partitions, **later})
    return replace(fresh, topics=topics)


def _is_later(known: PartitionInfo, fresh: PartitionInfo | None, topic: TopicInfo) -> bool:
    """Return whether the partition state `known` has a larger leader epoch than `fresh`.

    If `fresh` is None, return True, because a topic never loses a partition. But return False if
    `topic`, from the fresh response, has no topic id or has an error.
    """
    if fresh is None:
        return topic.topic_id != NO_TOPIC_ID and topic.error == ErrorCode.NONE
    return NO_EPOCH < fresh.leader_epoch < known.leader_epoch


def _topic(topic: MetadataResponseTopic) -> TopicInfo:
    name = topic.name or ""
    return TopicInfo(
        name=name,
        error=error_code(topic.error_code),
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions={row.partition_index: _partition(name, row) for row in topic.partitions},
    )


def _partition(topic: str, row: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        topic_partition=TopicPartition(topic, row.partition_index),
        error=error_code(row.error_code),
        leader=row.leader_id,
        leader_epoch=row.leader_epoch,
        replicas=tuple(row.replica_nodes),
        isr=tuple(row.isr_nodes),
        offline_replicas=tuple(row.offline_replicas),
    )
