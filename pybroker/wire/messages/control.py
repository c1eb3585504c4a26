"""Messages between brokers about replicas' roles: LeaderAndIsr (4) 5, StopReplica (5) 3,
UpdateMetadata (6) 7, ControlledShutdown (7) 3.

Only these versions exist here: both ends are of one cluster, which pins them (Kafka pins them by
inter.broker.protocol.version). They are those of Kafka 2.8 to 3.3. All are flexible, so that
fields of our own can be tagged: readers that do not know them pass over them.
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
"""Of a partition's eligible replicas; far away from the tags that Kafka gives out."""

EXTENT_TAG: Final = 10_003
"""Of a request: whether the partitions that it names, alone or with the requests before it, are all
that there are."""

UNKNOWN_TYPE: Final = 0
INCREMENTAL_TYPE: Final = 1
FULL_TYPE: Final = 2
"""Whether a LeaderAndIsr names all replicas of its receiver."""


@message
class LeaderAndIsrPartitionState(Message):
    """One element of `LeaderAndIsrTopicState.partition_states`."""

    partition_index: int = int32("The partition's number.")
    controller_epoch: int = int32("The epoch of the controller that wrote the state.")
    leader: int = int32("The leader's broker id, -1 if there is none.")
    leader_epoch: int = int32("The leader's epoch.")
    isr: list[int] = int32_array("The replicas in sync.")
    partition_epoch: int = int32("The version of the state node.")
    replicas: list[int] = int32_array("All replicas, the preferred one first.")
    adding_replicas: list[int] = int32_array("Replicas that are being added (KIP-455).")
    removing_replicas: list[int] = int32_array("Replicas that are being removed (KIP-455).")
    is_new: bool = boolean("Whether no replica can have data of it yet.")
    eligible: list[int] = int32_array(
        "Replicas outside the ISR that hold everything committed (ours; KIP-966's idea).",
        tag=ELIGIBLE_TAG,
    )


@message
class LeaderAndIsrTopicState(Message):
    """One element of `LeaderAndIsrRequest.topic_states`."""

    topic_name: str = string("The topic's name.")
    topic_id: uuid.UUID = identifier("The topic's id.")
    partition_states: list[LeaderAndIsrPartitionState] = array(
        LeaderAndIsrPartitionState, "The partitions."
    )


@message
class LeaderAndIsrLiveLeader(Message):
    """One element of `LeaderAndIsrRequest.live_leaders`."""

    broker_id: int = int32("The broker's id.")
    host_name: str = string("Where other brokers reach it.")
    port: int = int32("Its port there.")


@message
class LeaderAndIsrRequest(Message):
    """Tells a broker which partitions it leads and which it follows."""

    controller_id: int = int32("The controller's broker id.")
    controller_epoch: int = int32("The controller's epoch.")
    broker_epoch: int = int64("The receiver's registration that is meant (KIP-380).", default=-1)
    type: int = int8("0 not said, 1 some of the receiver's replicas, 2 all of them.")
    topic_states: list[LeaderAndIsrTopicState] = array(LeaderAndIsrTopicState, "By topic.")
    live_leaders: list[LeaderAndIsrLiveLeader] = array(
        LeaderAndIsrLiveLeader, "Where the leaders are."
    )
    extent: int = int8(
        "0 some replicas, 1 all, 2 the first, 3 more, 4 the last of all (ours).",
        since=4,
        tag=EXTENT_TAG,
        default=0,
    )


@message
class LeaderAndIsrPartitionError(Message):
    """One element of `LeaderAndIsrTopicError.partition_errors`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class LeaderAndIsrTopicError(Message):
    """One element of `LeaderAndIsrResponse.topics`."""

    topic_id: uuid.UUID = identifier("The topic's id.")
    partition_errors: list[LeaderAndIsrPartitionError] = array(
        LeaderAndIsrPartitionError, "The results, by partition."
    )


@message
class LeaderAndIsrResponse(Message):
    """Which roles were taken."""

    error_code: int = int16("The error of the whole, or 0.")
    topics: list[LeaderAndIsrTopicError] = array(LeaderAndIsrTopicError, "The results, by topic.")


@message
class StopReplicaPartitionState(Message):
    """One element of `StopReplicaTopicState.partition_states`."""

    partition_index: int = int32("The partition's number.")
    leader_epoch: int = int32("The leader's epoch; -2 while the topic is deleted.", default=-1)
    delete_partition: bool = boolean("Whether its data are to be removed.")


@message
class StopReplicaTopicState(Message):
    """One element of `StopReplicaRequest.topic_states`."""

    topic_name: str = string("The topic's name.")
    partition_states: list[StopReplicaPartitionState] = array(
        StopReplicaPartitionState, "The partitions."
    )


@message
class StopReplicaRequest(Message):
    """Tells a broker to serve some replicas no longer."""

    controller_id: int = int32("The controller's broker id.")
    controller_epoch: int = int32("The controller's epoch.")
    broker_epoch: int = int64("The receiver's registration that is meant (KIP-380).", default=-1)
    topic_states: list[StopReplicaTopicState] = array(StopReplicaTopicState, "By topic.")


@message
class StopReplicaPartitionError(Message):
    """One element of `StopReplicaResponse.partition_errors`."""

    topic_name: str = string("The topic's name.")
    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class StopReplicaResponse(Message):
    """Which replicas were stopped."""

    error_code: int = int16("The error of the whole, or 0.")
    partition_errors: list[StopReplicaPartitionError] = array(
        StopReplicaPartitionError, "The results, by partition."
    )


@message
class UpdateMetadataPartitionState(Message):
    """One element of `UpdateMetadataTopicState.partition_states`."""

    partition_index: int = int32("The partition's number.")
    controller_epoch: int = int32("The epoch of the controller that wrote the state.")
    leader: int = int32("The leader's broker id, -1 none, -2 the topic is deleted.")
    leader_epoch: int = int32("The leader's epoch.")
    isr: list[int] = int32_array("The replicas in sync.")
    zk_version: int = int32("The version of the state node.")
    replicas: list[int] = int32_array("All replicas, the preferred one first.")
    offline_replicas: list[int] = int32_array("Replicas that cannot be used now.")


@message
class UpdateMetadataTopicState(Message):
    """One element of `UpdateMetadataRequest.topic_states`."""

    topic_name: str = string("The topic's name.")
    topic_id: uuid.UUID = identifier("The topic's id.")
    partition_states: list[UpdateMetadataPartitionState] = array(
        UpdateMetadataPartitionState, "The partitions."
    )


@message
class UpdateMetadataEndpoint(Message):
    """One element of `UpdateMetadataBroker.endpoints`."""

    port: int = int32("The port.")
    host: str = string("The host.")
    listener: str = string("The listener's name.")
    security_protocol: int = int16("0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.")


@message
class UpdateMetadataBroker(Message):
    """One element of `UpdateMetadataRequest.live_brokers`."""

    id: int = int32("The broker's id.")
    endpoints: list[UpdateMetadataEndpoint] = array(
        UpdateMetadataEndpoint, "Where it can be reached."
    )
    rack: str | None = string("Where it stands, or null.", nullable_since=0, default=None)


@message
class UpdateMetadataRequest(Message):
    """Tells a broker what to answer to Metadata requests."""

    controller_id: int = int32("The controller's broker id.")
    controller_epoch: int = int32("The controller's epoch.")
    broker_epoch: int = int64("The receiver's registration that is meant (KIP-380).", default=-1)
    topic_states: list[UpdateMetadataTopicState] = array(
        UpdateMetadataTopicState, "The changed partitions, by topic."
    )
    live_brokers: list[UpdateMetadataBroker] = array(UpdateMetadataBroker, "All live brokers.")
    extent: int = int8(
        "0 some partitions, 1 all, 2 the first, 3 more, 4 the last of all (ours).",
        since=6,
        tag=EXTENT_TAG,
        default=0,
    )


@message
class UpdateMetadataResponse(Message):
    """Whether that was taken note of."""

    error_code: int = int16("The error, or 0.")


@message
class ControlledShutdownRequest(Message):
    """A stopping broker asks the controller to move its leaderships to other brokers."""

    broker_id: int = int32("The broker that stops.")
    broker_epoch: int = int64("Its registration (KIP-380).", default=-1)


@message
class RemainingPartition(Message):
    """One element of `ControlledShutdownResponse.remaining_partitions`."""

    topic_name: str = string("The topic's name.")
    partition_index: int = int32("The partition's number.")


@message
class ControlledShutdownResponse(Message):
    """The partitions that the broker still leads."""

    error_code: int = int16("The error, or 0.")
    remaining_partitions: list[RemainingPartition] = array(
        RemainingPartition, "Partitions without another leader."
    )
