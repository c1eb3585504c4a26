"""The encoding of the producer's batches, and of the requests that carry them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from pybroker.client.accumulator import ProducerBatch
from pybroker.client.options import ProducerOptions
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import TRANSACTIONAL_FLAG
from pybroker.records.builder import pack_batch
from pybroker.records.compression import Codec, compress_steps
from pybroker.records.record import Record, decode_records
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

NO_RESULT: Final = PartitionProduceResponse(
    error_code=ErrorCode.UNKNOWN_SERVER_ERROR,
    error_message="the broker's response has no result for the partition",
)
"""The result of a partition that is missing in a response."""
NO_POSITION: Final = PartitionProduceResponse(base_offset=-1, log_append_time_ms=-1)
"""The result of a batch whose offset is unknown, as with acks=0."""


def compress_batch(batch: ProducerBatch, codec: Codec) -> Generator[int, None, None]:
    """Compress a closed batch into its `payload`. Each step takes a few milliseconds, and yields
    the number of bytes that the step has compressed."""
    payload = yield from compress_steps(codec, batch.records.encoded())
    if batch.outcome is None:
        batch.payload = payload
        batch.records.release()


def encode(batch: ProducerBatch, codec: Codec, transactional: bool) -> bytes:
    """Return the compressed batch as bytes, with its sequence numbers if it has any."""
    records = batch.records
    assert batch.payload is not None
    return pack_batch(
        batch.payload,
        records.count,
        attributes=codec | (TRANSACTIONAL_FLAG if transactional else 0),
        base_timestamp=records.base_timestamp,
        max_timestamp=records.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )


def decode(batch: ProducerBatch) -> list[Record]:
    """Return the records of an encoded batch."""
    assert batch.encoded is not None
    return decode_records(batch.encoded, decompressed_bytes_max=batch.memory)


def produce_request(batches: Iterable[ProducerBatch], options: ProducerOptions) -> ProduceRequest:
    """Return a request with these encoded batches. The caller must not give two batches of one
    partition."""
    topics: dict[str, TopicProduceData] = {}
    for batch in batches:
        topic, partition = batch.topic_partition
        data = topics.setdefault(topic, TopicProduceData(name=topic))
        data.partition_data.append(PartitionProduceData(index=partition, records=batch.encoded))
    return ProduceRequest(
        transactional_id=options.transactional_id,
        acks=options.acks,
        timeout_ms=options.request_timeout_ms,
        topic_data=list(topics.values()),
    )


def results_of(response: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the result of each partition in the response."""
    return {
        TopicPartition(topic.name, result.index): result
        for topic in response.responses
        for result in topic.partition_responses
    }
