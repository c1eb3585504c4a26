"""Produce (0), versions 0-9.

Versions 0-2 carry the message formats before record batches; their layout is declared so that a
broker can refuse them in words.

1 throttle time in the answer. 2 log append time. 3 transactional id, one record batch a partition.
4 error 56 possible. 5 log start offset. 6 the client throttles itself. 7 zstd. 8 errors by record
(KIP-467). 9 flexible. The throttle time is the last field here, unlike everywhere else.
"""

from __future__ import annotations

from pybroker.wire.primitives import Buffer
from pybroker.wire.schema import Message, array, int16, int32, int64, message, records, string


@message
class PartitionProduceData(Message):
    """One element of `TopicProduceData.partition_data`."""

    index: int = int32("The partition's number.")
    records: Buffer | None = records("The batch; exactly one from version 3 on.", nullable_since=0)


@message
class TopicProduceData(Message):
    """One element of `ProduceRequest.topic_data`."""

    name: str = string("The topic's name.")
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
    acks: int = int16("Replicas that acknowledge: 0 none (no answer), 1 the leader, -1 the ISR.")
    timeout_ms: int = int32("How long to wait for the ISR, in ms.")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "The batches to append, by topic.")


@message
class BatchIndexAndErrorMessage(Message):
    """One element of `PartitionProduceResponse.record_errors`."""

    batch_index: int = int32("The record's place in the batch.")
    batch_index_error_message: str | None = string(
        "The error of the record, or null.", nullable_since=0, default=None
    )


@message
class PartitionProduceResponse(Message):
    """One element of `TopicProduceResponse.partition_responses`."""

    index: int = int32("The partition's number.")
    error_code: int = int16("The error, or 0.")
    base_offset: int = int64("The offset of the first record, or -1.")
    log_append_time_ms: int = int64(
        "The broker's time stamp with LogAppendTime, else -1.", since=2, ignorable=True, default=-1
    )
    log_start_offset: int = int64(
        "The first offset that the partition holds.", since=5, ignorable=True, default=-1
    )
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage,
        "Which records made the batch fail (KIP-467).",
        since=8,
        ignorable=True,
    )
    error_message: str | None = string(
        "The error of the batch, or null.",
        since=8,
        nullable_since=8,
        ignorable=True,
        default=None,
    )


@message
class TopicProduceResponse(Message):
    """One element of `ProduceResponse.responses`."""

    name: str = string("The topic's name.")
    partition_responses: list[PartitionProduceResponse] = array(
        PartitionProduceResponse, "The results, by partition."
    )


@message
class ProduceResponse(Message):
    """The result of each batch. With acks=0 it is never sent."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "The results, by topic.")
    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
