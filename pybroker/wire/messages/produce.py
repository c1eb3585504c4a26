"""Produce (0), versions 0-9. Versions 0-2 carry the message formats 0 and 1, which the broker
rejects.

Version 3 allows only one record batch for each partition. Version 4 adds error 56
(KAFKA_STORAGE_ERROR). Throttling by the client (KIP-219) begins with version 6. Version 7 adds
zstd.
"""

from __future__ import annotations

from pybroker.wire.primitives import Buffer
from pybroker.wire.schema import Message, array, int16, int32, int64, message, records, string


@message
class PartitionProduceData(Message):
    """The records to append to one partition: an element of `TopicProduceData.partition_data`."""

    index: int = int32("The partition number.")
    records: Buffer | None = records(
        "The record batches; exactly one batch from version 3 on.", nullable_since=0
    )


@message
class TopicProduceData(Message):
    """A topic with the records to append to its partitions: an element of
    `ProduceRequest.topic_data`."""

    name: str = string("The topic name.")
    partition_data: list[PartitionProduceData] = array(
        PartitionProduceData, "The batches to append."
    )


@message
class ProduceRequest(Message):
    """Appends record batches to partitions that this broker leads."""

    transactional_id: str | None = string(
        "The transactional id, or null outside transactions.",
        since=3,
        nullable_since=3,
        default=None,
    )
    acks: int = int16(
        "The required acks: 0 none (the broker sends no response), 1 the leader, -1 the full ISR."
    )
    timeout_ms: int = int32("The maximum time to wait for the in-sync replicas, in ms.")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "The batches to append, by topic.")


@message
class BatchIndexAndErrorMessage(Message):
    """An invalid record of the batch, and its error: an element of
    `PartitionProduceResponse.record_errors`."""

    batch_index: int = int32("The index of the record in the batch, from 0.")
    batch_index_error_message: str | None = string(
        "The error message of the record, or null.", nullable_since=0, default=None
    )


@message
class PartitionProduceResponse(Message):
    """The result for one partition: an element of `TopicProduceResponse.partition_responses`."""

    index: int = int32("The partition number.")
    error_code: int = int16("The error, or 0.")
    base_offset: int = int64("The offset of the first record, or -1 on error.")
    log_append_time_ms: int = int64(
        "The timestamp that the leader set for LogAppendTime, or -1 for CreateTime.",
        since=2,
        ignorable=True,
        default=-1,
    )
    log_start_offset: int = int64("The log start offset.", since=5, ignorable=True, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage,
        "The invalid records of the batch (KIP-467).",
        since=8,
        ignorable=True,
    )
    error_message: str | None = string(
        "The error message of the batch, or null.",
        since=8,
        nullable_since=8,
        ignorable=True,
        default=None,
    )


@message
class TopicProduceResponse(Message):
    """A topic with the results for its partitions: an element of `ProduceResponse.responses`."""

    name: str = string("The topic name.")
    partition_responses: list[PartitionProduceResponse] = array(
        PartitionProduceResponse, "The results, by partition."
    )


@message
class ProduceResponse(Message):
    """The result of each batch. The broker sends no response to a request with acks=0."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "The results, by topic.")
    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
