"""Transactions and idempotent producers: InitProducerId (22), versions 0-4; AddPartitionsToTxn
(24), versions 0-4; AddOffsetsToTxn (25) and EndTxn (26), versions 0-3; WriteTxnMarkers (27),
versions 0-1; TxnOffsetCommit (28), versions 0-3.

- The client itself pauses for the throttle time (KIP-219) from version 1 on.
- Error 90 (PRODUCER_FENCED) begins with InitProducerId 4, and with version 2 of AddPartitionsToTxn,
  AddOffsetsToTxn and EndTxn.
- Only brokers send AddPartitionsToTxn 4 (KIP-890), which can verify partitions instead of adding
  them.
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
    """Requests a producer id and a producer epoch."""

    transactional_id: str | None = string(
        "The transactional id; null for an idempotent producer without transactions.",
        nullable_since=0,
        default=None,
    )
    transaction_timeout_ms: int = int32("The transaction timeout, in ms.")
    producer_id: int = int64(
        "The current producer id, to keep it with a larger epoch; -1 for a new producer (KIP-360).",
        since=3,
        default=-1,
    )
    producer_epoch: int = int16(
        "The current producer epoch, or -1 for a new producer.", since=3, default=-1
    )


@message
class InitProducerIdResponse(Message):
    """The producer id and the producer epoch."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    producer_id: int = int64("The producer id.", default=-1)
    producer_epoch: int = int16("The producer epoch.")


@message
class AddPartitionsToTxnTopic(Message):
    """A topic with the partitions to add to the transaction: an element of
    `AddPartitionsToTxnRequest.topics`."""

    name: str = string("The topic name.")
    partitions: list[int] = int32_array("The partition numbers.")


@message
class AddPartitionsToTxnTransaction(Message):
    """A transaction with the partitions to add or to verify: an element of
    `AddPartitionsToTxnRequest.transactions`."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer id.")
    producer_epoch: int = int16("The producer epoch.")
    verify_only: bool = boolean(
        "Whether to check that the partitions are in the transaction; false adds them."
    )
    topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, "The partitions to add or to verify, by topic."
    )


@message
class AddPartitionsToTxnRequest(Message):
    """Adds partitions to a transaction. Version 4 adds partitions to many transactions, or verifies
    that each transaction contains its listed partitions."""

    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, "The transactions with their partitions.", since=4
    )
    transactional_id: str = string("The transactional id.", until=3)
    producer_id: int = int64("The producer id.", until=3)
    producer_epoch: int = int16("The producer epoch.", until=3)
    topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, "The partitions to add to the transaction, by topic.", until=3
    )


@message
class AddPartitionsToTxnPartitionResult(Message):
    """The result for one partition: an element of `AddPartitionsToTxnTopicResult.results`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class AddPartitionsToTxnTopicResult(Message):
    """A topic with the results for its partitions: an element of
    `AddPartitionsToTxnResponse.results` and of `AddPartitionsToTxnResult.topics`."""

    name: str = string("The topic name.")
    results: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, "The results, by partition."
    )


@message
class AddPartitionsToTxnResult(Message):
    """A transaction with the results for its partitions: an element of
    `AddPartitionsToTxnResponse.transactions`."""

    transactional_id: str = string("The transactional id.")
    topics: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "The results, by topic."
    )


@message
class AddPartitionsToTxnResponse(Message):
    """The result for each partition to add or to verify."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error of the whole request, or 0.", since=4, ignorable=True)
    transactions: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, "The results, by transaction.", since=4
    )
    results: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "The results, by topic.", until=3
    )


@message
class AddOffsetsToTxnRequest(Message):
    """Adds a group's partition of `__consumer_offsets` to a transaction."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer id.")
    producer_epoch: int = int16("The producer epoch.")
    group_id: str = string("The id of the group whose offsets the transaction commits.")


@message
class AddOffsetsToTxnResponse(Message):
    """The result of adding a group's offsets to a transaction."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")


@message
class EndTxnRequest(Message):
    """Commits or aborts a transaction."""

    transactional_id: str = string("The transactional id.")
    producer_id: int = int64("The producer id.")
    producer_epoch: int = int16("The producer epoch.")
    committed: bool = boolean("Whether to commit the transaction; false aborts it.")


@message
class EndTxnResponse(Message):
    """The result of committing or aborting a transaction."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")


@message
class WritableTxnMarkerTopic(Message):
    """A topic with the partitions that get the marker: an element of `WritableTxnMarker.topics`."""

    name: str = string("The topic name.")
    partition_indexes: list[int] = int32_array("The partition numbers.")


@message
class WritableTxnMarker(Message):
    """A transaction marker, and the partitions that get it: an element of
    `WriteTxnMarkersRequest.markers`."""

    producer_id: int = int64("The producer id.")
    producer_epoch: int = int16("The producer epoch.")
    transaction_result: bool = boolean(
        "Whether the marker commits the transaction; false aborts it."
    )
    topics: list[WritableTxnMarkerTopic] = array(
        WritableTxnMarkerTopic, "The partitions of the transaction, by topic."
    )
    coordinator_epoch: int = int32("The epoch of the coordinator that writes the marker.")


@message
class WriteTxnMarkersRequest(Message):
    """Writes transaction markers; sent by a transaction coordinator to the partition leaders."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "The markers to write.")


@message
class WritableTxnMarkerPartitionResult(Message):
    """The result for one partition: an element of `WritableTxnMarkerTopicResult.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class WritableTxnMarkerTopicResult(Message):
    """A topic with the results for its partitions: an element of
    `WritableTxnMarkerResult.topics`."""

    name: str = string("The topic name.")
    partitions: list[WritableTxnMarkerPartitionResult] = array(
        WritableTxnMarkerPartitionResult, "The results, by partition."
    )


@message
class WritableTxnMarkerResult(Message):
    """The results for one marker: an element of `WriteTxnMarkersResponse.markers`."""

    producer_id: int = int64("The producer id.")
    topics: list[WritableTxnMarkerTopicResult] = array(
        WritableTxnMarkerTopicResult, "The results, by topic."
    )


@message
class WriteTxnMarkersResponse(Message):
    """The result for each marker."""

    markers: list[WritableTxnMarkerResult] = array(
        WritableTxnMarkerResult, "The results, by marker."
    )


@message
class TxnOffsetCommitRequestPartition(Message):
    """A partition, and the offset to commit: an element of
    `TxnOffsetCommitRequestTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    committed_offset: int = int64("The offset of the next record to consume.")
    committed_leader_epoch: int = int32(
        "The leader epoch of the last consumed record, or -1.", since=2, ignorable=True, default=-1
    )
    committed_metadata: str | None = string(
        "Metadata of the commit: any text, which OffsetFetch returns.", nullable_since=0
    )


@message
class TxnOffsetCommitRequestTopic(Message):
    """A topic with the offsets to commit: an element of `TxnOffsetCommitRequest.topics`."""

    name: str = string("The topic name.")
    partitions: list[TxnOffsetCommitRequestPartition] = array(
        TxnOffsetCommitRequestPartition, "The offsets to commit."
    )


@message
class TxnOffsetCommitRequest(Message):
    """Commits offsets of a group as part of a transaction."""

    transactional_id: str = string("The transactional id.")
    group_id: str = string("The group id.")
    producer_id: int = int64("The producer id.")
    producer_epoch: int = int16("The producer epoch.")
    generation_id: int = int32(
        "The generation of the member, or -1 (KIP-447).", since=3, default=-1
    )
    member_id: str = string(
        "The member id; empty until the coordinator assigns a member id.", since=3
    )
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        since=3,
        nullable_since=3,
        default=None,
    )
    topics: list[TxnOffsetCommitRequestTopic] = array(
        TxnOffsetCommitRequestTopic, "The offsets to commit, by topic."
    )


@message
class TxnOffsetCommitResponsePartition(Message):
    """The result for one partition: an element of `TxnOffsetCommitResponseTopic.partitions`."""

    partition_index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")


@message
class TxnOffsetCommitResponseTopic(Message):
    """A topic with the results for its partitions: an element of
    `TxnOffsetCommitResponse.topics`."""

    name: str = string("The topic name.")
    partitions: list[TxnOffsetCommitResponsePartition] = array(
        TxnOffsetCommitResponsePartition, "The results, by partition."
    )


@message
class TxnOffsetCommitResponse(Message):
    """The result for each offset to commit."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    topics: list[TxnOffsetCommitResponseTopic] = array(
        TxnOffsetCommitResponseTopic, "The results, by topic."
    )
