"""Metadata (3), versions 0-12.

1 null for all topics, controller, racks, internal topics. 2 cluster id. 3 throttle time. 4 no
automatic creation on demand. 5 offline replicas. 6 the client throttles itself. 7 leader epochs.
8 authorized operations. 9 flexible. 10 topic ids. 11 no operations on the cluster any more, see
DescribeCluster. 12 lookup by topic id.
"""

from __future__ import annotations

import uuid
from typing import Final

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    identifier,
    int16,
    int32,
    int32_array,
    message,
    string,
)

OPERATIONS_NOT_ASKED: Final = -(2**31)  # instead of the bits of authorized operations


@message
class MetadataRequestTopic(Message):
    """One element of `MetadataRequest.topics`."""

    topic_id: uuid.UUID = identifier("The topic's id; zero if none.", since=10, ignorable=True)
    name: str | None = string(
        "The topic's name, or null if it is asked for by id.", nullable_since=10
    )


@message
class MetadataRequest(Message):
    """Asks for brokers and topics."""

    topics: list[MetadataRequestTopic] | None = array(
        MetadataRequestTopic,
        "The topics to describe; null all (version 0: empty), else empty none.",
        nullable_since=1,
    )
    allow_auto_topic_creation: bool = boolean(
        "Whether a missing topic may be created.", since=4, default=True
    )
    include_cluster_authorized_operations: bool = boolean(
        "Whether to answer the operations allowed on the cluster.", since=8, until=10
    )
    include_topic_authorized_operations: bool = boolean(
        "Whether to answer the operations allowed on each topic.", since=8
    )


@message
class MetadataResponseBroker(Message):
    """One element of `MetadataResponse.brokers`."""

    node_id: int = int32("The broker's id.")
    host: str = string("Where the broker listens.")
    port: int = int32("The port it listens on.")
    rack: str | None = string(
        "The broker's rack, or null.", since=1, nullable_since=1, ignorable=True, default=None
    )


@message
class MetadataResponsePartition(Message):
    """One element of `MetadataResponseTopic.partitions`."""

    error_code: int = int16("The error, or 0.")
    partition_index: int = int32("The partition's number.")
    leader_id: int = int32("The leader's broker id, or -1.")
    leader_epoch: int = int32("The leader's epoch, or -1.", since=7, ignorable=True, default=-1)
    replica_nodes: list[int] = int32_array("All replicas, the preferred leader first.")
    isr_nodes: list[int] = int32_array("The replicas in sync.")
    offline_replicas: list[int] = int32_array(
        "The replicas that are not available.", since=5, ignorable=True
    )


@message
class MetadataResponseTopic(Message):
    """One element of `MetadataResponse.topics`."""

    error_code: int = int16("The error, or 0.")
    name: str | None = string("The topic's name; null if the id is unknown.", nullable_since=12)
    topic_id: uuid.UUID = identifier("The topic's id; zero if none.", since=10, ignorable=True)
    is_internal: bool = boolean(
        "Whether the broker keeps the topic for itself.", since=1, ignorable=True
    )
    partitions: list[MetadataResponsePartition] = array(
        MetadataResponsePartition, "The partitions."
    )
    topic_authorized_operations: int = int32(
        "Bits of the operations allowed on the topic.", since=8, default=OPERATIONS_NOT_ASKED
    )


@message
class MetadataResponse(Message):
    """Brokers, topics, and the leader of each partition."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=3,
        ignorable=True,
    )
    brokers: list[MetadataResponseBroker] = array(
        MetadataResponseBroker, "The live brokers, as this listener's clients reach them."
    )
    cluster_id: str | None = string(
        "The cluster's id.", since=2, nullable_since=2, ignorable=True, default=None
    )
    controller_id: int = int32(
        "The controller's broker id, or -1.", since=1, ignorable=True, default=-1
    )
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "The topics.")
    cluster_authorized_operations: int = int32(
        "Bits of the operations that the client may do to the cluster.",
        since=8,
        until=10,
        default=OPERATIONS_NOT_ASKED,
    )
