"""Metadata (3), versions 0-12.

Versions 6 and 12 add no field: version 6 moves throttling to the client (KIP-219), version 12
allows lookup by topic id. From version 11 on, DescribeCluster returns the authorized operations of
the cluster.
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

OPERATIONS_NOT_ASKED: Final = -(2**31)
"""The value of a field for authorized operations if the client did not request them."""


@message
class MetadataRequestTopic(Message):
    """A topic to describe: an element of `MetadataRequest.topics`."""

    topic_id: uuid.UUID = identifier(
        "The topic id; the zero UUID if the topic has none.", since=10, ignorable=True
    )
    name: str | None = string(
        "The topic name; null if the request names the topic by id.", nullable_since=10
    )


@message
class MetadataRequest(Message):
    """Requests the brokers of the cluster, and the leaders and replicas of topics."""

    topics: list[MetadataRequestTopic] | None = array(
        MetadataRequestTopic,
        "The topics to describe; null for all topics, empty for none (in version 0: for all).",
        nullable_since=1,
    )
    allow_auto_topic_creation: bool = boolean(
        "Whether the broker may create a missing topic.", since=4, default=True
    )
    include_cluster_authorized_operations: bool = boolean(
        "Whether the response includes the operations that the client may perform on the cluster.",
        since=8,
        until=10,
    )
    include_topic_authorized_operations: bool = boolean(
        "Whether the response includes the operations that the client may perform on each topic.",
        since=8,
    )


@message
class MetadataResponseBroker(Message):
    """A live broker: an element of `MetadataResponse.brokers`."""

    node_id: int = int32("The broker id.")
    host: str = string("The host on which the broker listens.")
    port: int = int32("The port on which the broker listens.")
    rack: str | None = string(
        "The rack of the broker, or null.", since=1, nullable_since=1, ignorable=True, default=None
    )


@message
class MetadataResponsePartition(Message):
    """The leader and the replicas of one partition: an element of
    `MetadataResponseTopic.partitions`."""

    error_code: int = int16("The error, or 0.")
    partition_index: int = int32("The partition number.")
    leader_id: int = int32("The broker id of the leader; -1 if the leader is unknown.")
    leader_epoch: int = int32(
        "The leader epoch; -1 if unknown.", since=7, ignorable=True, default=-1
    )
    replica_nodes: list[int] = int32_array("The assigned replicas, the preferred leader first.")
    isr_nodes: list[int] = int32_array("The in-sync replicas.")
    offline_replicas: list[int] = int32_array("The offline replicas.", since=5, ignorable=True)


@message
class MetadataResponseTopic(Message):
    """A topic with its partitions: an element of `MetadataResponse.topics`."""

    error_code: int = int16("The error, or 0.")
    name: str | None = string("The topic name; null if the topic id is unknown.", nullable_since=12)
    topic_id: uuid.UUID = identifier(
        "The topic id; the zero UUID if the topic has none.", since=10, ignorable=True
    )
    is_internal: bool = boolean(
        "Whether the topic is internal, such as __consumer_offsets.", since=1, ignorable=True
    )
    partitions: list[MetadataResponsePartition] = array(
        MetadataResponsePartition, "The partitions of the topic."
    )
    topic_authorized_operations: int = int32(
        "A bit field of the operations that the client may perform on the topic.",
        since=8,
        default=OPERATIONS_NOT_ASKED,
    )


@message
class MetadataResponse(Message):
    """The brokers, the topics, and the leader of each partition."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=3,
        ignorable=True,
    )
    brokers: list[MetadataResponseBroker] = array(
        MetadataResponseBroker,
        "The live brokers, with their addresses on the listener of this connection.",
    )
    cluster_id: str | None = string(
        "The cluster id.", since=2, nullable_since=2, ignorable=True, default=None
    )
    controller_id: int = int32(
        "The broker id of the controller, or -1.", since=1, ignorable=True, default=-1
    )
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "The requested topics.")
    cluster_authorized_operations: int = int32(
        "A bit field of the operations that the client may perform on the cluster.",
        since=8,
        until=10,
        default=OPERATIONS_NOT_ASKED,
    )
