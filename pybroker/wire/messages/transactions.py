"""Transactions and idempotence: InitProducerId (22) 0-4, AddPartitionsToTxn (24) 0-3,
AddOffsetsToTxn (25) 0-3, EndTxn (26) 0-3, WriteTxnMarkers (27) 0-1, TxnOffsetCommit (28) 0-3.

All: 1 the client throttles itself (WriteTxnMarkers: 1 flexible).
InitProducerId: 2 flexible. 3 an id to go on with (KIP-360). 4 error 90 possible.
AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: 2 error 90 possible. 3 flexible.
TxnOffsetCommit: 2 leader epochs. 3 group membership (KIP-447), flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    int16,
    int32,
    int32_array,
    int64,
    message,
    string,
)


@message
class InitProducerIdRequest(Message):
    """Asks for a producer id and epoch."""

    transactional_id: str | None = string(
        "The transactional id; null for idempotence alone.", nullable_since=0, default=None
    )
    transaction_timeout_ms: int = int32("After how many ms an idle transaction is aborted.")
    producer_id: int = int64(
        "The id to go on with after an error, or -1 (KIP-360).", since=3, default=-1
    )
    producer_epoch: int = int16("The epoch to go on with, or -1.", since=3, default=-1)


@message
class InitProducerIdResponse(Message):
    """The producer id and epoch."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")
    producer_id: int = int64("The producer's id.", default=-1)
    producer_epoch: int = int16("The producer's epoch.")


@message
class AddPartitionsToTxnTopic(Message):
    """One element of `AddPartitionsToTxnRequest.topics`."""

    name: str = string("The topic's name.")
    partitions: list[int] = int32_array("The partitions' numbers.")


@message
class AddPartitionsToTxnRequest(Message):
    """Tells the coordinator which partitions a transaction will write to."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer's id.")
    producer_epoch: int = int16("The producer's epoch.")
    topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, "The partitions that the transaction will write to."
    )


@message
class AddPartitionsToTxnPartitionResult(Message):
    """One element of `AddPartitionsToTxnTopicResult.results`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class AddPartitionsToTxnTopicResult(Message):
    """One element of `AddPartitionsToTxnResponse.results`."""

    name: str = string("The topic's name.")
    results: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, "The results, by partition."
    )


@message
class AddPartitionsToTxnResponse(Message):
    """Whether each partition was added."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    results: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "The results, by topic."
    )


@message
class AddOffsetsToTxnRequest(Message):
    """Tells the coordinator which group's offsets a transaction will commit."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer's id.")
    producer_epoch: int = int16("The producer's epoch.")
    group_id: str = string("The group whose offsets the transaction will commit.")


@message
class AddOffsetsToTxnResponse(Message):
    """Whether the group was added."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")


@message
class EndTxnRequest(Message):
    """Commits or aborts a transaction."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer's id.")
    producer_epoch: int = int16("The producer's epoch.")
    committed: bool = boolean("Whether to commit; otherwise abort.")


@message
class EndTxnResponse(Message):
    """Whether the decision was recorded."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")


@message
class WritableTxnMarkerTopic(Message):
    """One element of `WritableTxnMarker.topics`."""

    name: str = string("The topic's name.")
    partition_indexes: list[int] = int32_array("The partitions' numbers.")


@message
class WritableTxnMarker(Message):
    """One element of `WriteTxnMarkersRequest.markers`."""

    producer_id: int = int64("The producer's id.")
    producer_epoch: int = int16("The producer's epoch.")
    transaction_result: bool = boolean("Whether the transaction was committed.")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "Where it wrote.")
    coordinator_epoch: int = int32("The epoch of the coordinator that decided.")


@message
class WriteTxnMarkersRequest(Message):
    """From a coordinator to leaders: writes the decision on a transaction into the logs."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "The decisions to write.")


@message
class WritableTxnMarkerPartitionResult(Message):
    """One element of `WritableTxnMarkerTopicResult.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class WritableTxnMarkerTopicResult(Message):
    """One element of `WritableTxnMarkerResult.topics`."""

    name: str = string("The topic's name.")
    partitions: list[WritableTxnMarkerPartitionResult] = array(
        WritableTxnMarkerPartitionResult, "The results, by partition."
    )


@message
class WritableTxnMarkerResult(Message):
    """One element of `WriteTxnMarkersResponse.markers`."""

    producer_id: int = int64("The producer's id.")
    topics: list[WritableTxnMarkerTopicResult] = array(
        WritableTxnMarkerTopicResult, "The results, by topic."
    )


@message
class WriteTxnMarkersResponse(Message):
    """Whether each marker was written."""

    markers: list[WritableTxnMarkerResult] = array(
        WritableTxnMarkerResult, "The results, by marker."
    )


@message
class TxnOffsetCommitRequestPartition(Message):
    """One element of `TxnOffsetCommitRequestTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    committed_offset: int = int64("The offset of the next record to consume.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", since=2, ignorable=True, default=-1
    )
    committed_metadata: str | None = string("Text that the consumer wants back.", nullable_since=0)


@message
class TxnOffsetCommitRequestTopic(Message):
    """One element of `TxnOffsetCommitRequest.topics`."""

    name: str = string("The topic's name.")
    partitions: list[TxnOffsetCommitRequestPartition] = array(
        TxnOffsetCommitRequestPartition, "The offsets to commit."
    )


@message
class TxnOffsetCommitRequest(Message):
    """Stores how far a group has read, valid once the transaction is committed."""

    transactional_id: str = string("The transactional id.")
    group_id: str = string("The group's id.")
    producer_id: int = int64("The producer's id.")
    producer_epoch: int = int16("The producer's epoch.")
    generation_id: int = int32("The generation, or -1 (KIP-447).", since=3, default=-1)
    member_id: str = string("The member's id; empty before the coordinator gave one.", since=3)
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.", since=3, nullable_since=3, default=None
    )
    topics: list[TxnOffsetCommitRequestTopic] = array(
        TxnOffsetCommitRequestTopic, "The offsets to commit, by topic."
    )


@message
class TxnOffsetCommitResponsePartition(Message):
    """One element of `TxnOffsetCommitResponseTopic.partitions`."""

    partition_index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")


@message
class TxnOffsetCommitResponseTopic(Message):
    """One element of `TxnOffsetCommitResponse.topics`."""

    name: str = string("The topic's name.")
    partitions: list[TxnOffsetCommitResponsePartition] = array(
        TxnOffsetCommitResponsePartition, "The results, by partition."
    )


@message
class TxnOffsetCommitResponse(Message):
    """Whether each offset was stored."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    topics: list[TxnOffsetCommitResponseTopic] = array(
        TxnOffsetCommitResponseTopic, "The results, by topic."
    )
