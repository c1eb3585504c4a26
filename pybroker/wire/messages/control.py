"""Requests between brokers: LeaderAndIsr (key 4, version 5), StopReplica (key 5, version 3),
UpdateMetadata (key 6, version 7) and ControlledShutdown (key 7, version 3).

Kafka 2.8 to 3.1 uses these versions. All are flexible, so Kafka skips pybroker's own tagged fields.
"""

from __future__ import annotations

import uuid
from typing import Final

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    identifier,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    message,
    string,
)

ELIGIBLE_TAG: Final = 10_002
"""The tag of a partition's eligible replicas. Kafka assigns its tags from 0 on, so it never reaches
this tag."""

EXTENT_TAG: Final = 10_003
"""The tag of a request's extent. The extent tells whether the request lists some of the receiver's
partitions, all of them, or a portion. In the last case the portions in several requests together
list all of them."""

UNKNOWN_TYPE: Final = 0
INCREMENTAL_TYPE: Final = 1
FULL_TYPE: Final = 2
"""The type of a LeaderAndIsr request that contains all replicas of its receiver."""


@message
class LeaderAndIsrPartitionState(Message):
    """The state of one partition: an element of `LeaderAndIsrTopicState.partition_states`."""

    partition_index: int = int32("The partition number.")
    controller_epoch: int = int32("The epoch of the controller that wrote the partition state.")
    leader: int = int32("The broker id of the leader; -1 if the partition has no leader.")
    leader_epoch: int = int32("The leader epoch.")
    isr: list[int] = int32_array("The in-sync replicas.")
    partition_epoch: int = int32("The version of the partition's state node in ZooKeeper.")
    replicas: list[int] = int32_array("The assigned replicas, the preferred leader first.")
    adding_replicas: list[int] = int32_array("The replicas that a reassignment adds (KIP-455).")
    removing_replicas: list[int] = int32_array(
        "The replicas that a reassignment removes (KIP-455)."
    )
    is_new: bool = boolean("Whether the partition is new, so that no replica has data.")
    eligible: list[int] = int32_array(
        "Replicas outside the ISR that have all committed records (only pybroker; like KIP-966).",
        tag=ELIGIBLE_TAG,
    )


@message
class LeaderAndIsrTopicState(Message):
    """A topic with the states of its partitions: an element of
    `LeaderAndIsrRequest.topic_states`."""

    topic_name: str = string("The topic name.")
    topic_id: uuid.UUID = identifier("The topic id.")
    partition_states: list[LeaderAndIsrPartitionState] = array(
        LeaderAndIsrPartitionState, "The states of the partitions."
    )


@message
class LeaderAndIsrLiveLeader(Message):
    """The address of a broker that leads a partition of the request: an element of
    `LeaderAndIsrRequest.live_leaders`."""

    broker_id: int = int32("The broker id.")
    host_name: str = string("The host on which other brokers reach the broker.")
    port: int = int32("The port on which other brokers reach the broker.")


@message
class LeaderAndIsrRequest(Message):
    """The controller tells a broker which partitions to lead and which to follow. The request has
    the leader and the ISR of each partition."""

    controller_id: int = int32("The broker id of the controller.")
    controller_epoch: int = int32("The controller epoch.")
    broker_epoch: int = int64("The broker epoch of the receiver (KIP-380).", default=-1)
    type: int = int8(
        "The type of the request: 0 unknown, 1 some of the receiver's replicas, 2 all of them."
    )
    topic_states: list[LeaderAndIsrTopicState] = array(
        LeaderAndIsrTopicState, "The partition states, by topic."
    )
    live_leaders: list[LeaderAndIsrLiveLeader] = array(
        LeaderAndIsrLiveLeader, "The addresses of the leaders."
    )
    extent: int = int8(
        "The part of a full update in this request (only pybroker): 0 partial update, 1 full update"
        " in one request, 2 first request, 3 next request, 4 last request.",
        since=4,
        tag=EXTENT_TAG,
        default=0,
    )


@message
class LeaderAndIsrPartitionError(Message):
    """The result for one partition: an element of `LeaderAndIsrTopicError.partition_errors`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class LeaderAndIsrTopicError(Message):
    """A topic with the results for its partitions: an element of `LeaderAndIsrResponse.topics`."""

    topic_id: uuid.UUID = identifier("The topic id.")
    partition_errors: list[LeaderAndIsrPartitionError] = array(
        LeaderAndIsrPartitionError, "The results, by partition."
    )


@message
class LeaderAndIsrResponse(Message):
    """The result for each replica of the request."""

    error_code: int = int16("The error of the whole request, or 0.")
    topics: list[LeaderAndIsrTopicError] = array(LeaderAndIsrTopicError, "The results, by topic.")


@message
class StopReplicaPartitionState(Message):
    """A partition whose replica the broker stops: an element of
    `StopReplicaTopicState.partition_states`."""

    partition_index: int = int32("The partition number.")
    leader_epoch: int = int32("The leader epoch; -2 if the topic is being deleted.", default=-1)
    delete_partition: bool = boolean("Whether the broker deletes the data of the replica.")


@message
class StopReplicaTopicState(Message):
    """A topic with the partitions whose replicas the broker stops: an element of
    `StopReplicaRequest.topic_states`."""

    topic_name: str = string("The topic name.")
    partition_states: list[StopReplicaPartitionState] = array(
        StopReplicaPartitionState, "The states of the partitions."
    )


@message
class StopReplicaRequest(Message):
    """Requests that a broker stops replicas."""

    controller_id: int = int32("The broker id of the controller.")
    controller_epoch: int = int32("The controller epoch.")
    broker_epoch: int = int64("The broker epoch of the receiver (KIP-380).", default=-1)
    topic_states: list[StopReplicaTopicState] = array(
        StopReplicaTopicState, "The partition states, by topic."
    )


@message
class StopReplicaPartitionError(Message):
    """The result for one partition: an element of `StopReplicaResponse.partition_errors`."""

    topic_name: str = string("The topic name.")
    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class StopReplicaResponse(Message):
    """The result for each replica to stop."""

    error_code: int = int16("The error of the whole request, or 0.")
    partition_errors: list[StopReplicaPartitionError] = array(
        StopReplicaPartitionError, "The results, by partition."
    )


@message
class UpdateMetadataPartitionState(Message):
    """The state of one partition: an element of `UpdateMetadataTopicState.partition_states`."""

    partition_index: int = int32("The partition number.")
    controller_epoch: int = int32("The epoch of the controller that wrote the partition state.")
    leader: int = int32(
        "The broker id of the leader; -1 for no leader, -2 if the topic is being deleted."
    )
    leader_epoch: int = int32("The leader epoch.")
    isr: list[int] = int32_array("The in-sync replicas.")
    zk_version: int = int32("The version of the partition's state node in ZooKeeper.")
    replicas: list[int] = int32_array("The assigned replicas, the preferred leader first.")
    offline_replicas: list[int] = int32_array("The offline replicas.")


@message
class UpdateMetadataTopicState(Message):
    """A topic with the states of its partitions: an element of
    `UpdateMetadataRequest.topic_states`."""

    topic_name: str = string("The topic name.")
    topic_id: uuid.UUID = identifier("The topic id.")
    partition_states: list[UpdateMetadataPartitionState] = array(
        UpdateMetadataPartitionState, "The states of the partitions."
    )


@message
class UpdateMetadataEndpoint(Message):
    """The address of a broker on one listener: an element of `UpdateMetadataBroker.endpoints`."""

    port: int = int32("The port of the endpoint.")
    host: str = string("The host of the endpoint.")
    listener: str = string("The listener name.")
    security_protocol: int = int16(
        "The security protocol: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."
    )


@message
class UpdateMetadataBroker(Message):
    """A live broker with its addresses: an element of `UpdateMetadataRequest.live_brokers`."""

    id: int = int32("The broker id.")
    endpoints: list[UpdateMetadataEndpoint] = array(
        UpdateMetadataEndpoint, "The endpoints of the broker."
    )
    rack: str | None = string("The rack of the broker, or null.", nullable_since=0, default=None)


@message
class UpdateMetadataRequest(Message):
    """The controller's request to every broker. It has the live brokers of the cluster, and the
    states of partitions. The broker answers Metadata requests with this data."""

    controller_id: int = int32("The broker id of the controller.")
    controller_epoch: int = int32("The controller epoch.")
    broker_epoch: int = int64("The broker epoch of the receiver (KIP-380).", default=-1)
    topic_states: list[UpdateMetadataTopicState] = array(
        UpdateMetadataTopicState, "The changed partitions, by topic."
    )
    live_brokers: list[UpdateMetadataBroker] = array(
        UpdateMetadataBroker, "All live brokers of the cluster."
    )
    extent: int = int8(
        "The part of a full update in this request (only pybroker): 0 partial update, 1 full update"
        " in one request, 2 first request, 3 next request, 4 last request.",
        since=6,
        tag=EXTENT_TAG,
        default=0,
    )


@message
class UpdateMetadataResponse(Message):
    """The result of an UpdateMetadata request."""

    error_code: int = int16("The error, or 0.")


@message
class ControlledShutdownRequest(Message):
    """Requests that the controller moves the leaderships of a stopping broker to other brokers."""

    broker_id: int = int32("The broker id of the stopping broker.")
    broker_epoch: int = int64("The broker epoch of the stopping broker (KIP-380).", default=-1)


@message
class RemainingPartition(Message):
    """A partition that the stopping broker still leads: an element of
    `ControlledShutdownResponse.remaining_partitions`."""

    topic_name: str = string("The topic name.")
    partition_index: int = int32("The partition number.")


@message
class ControlledShutdownResponse(Message):
    """The partitions that the stopping broker still leads."""

    error_code: int = int16("The error, or 0.")
    remaining_partitions: list[RemainingPartition] = array(
        RemainingPartition, "The partitions for which the controller found no other leader."
    )
