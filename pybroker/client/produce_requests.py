"""The encoding of the producer's batches, and of the requests that carry them. This module does no
I/O."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.client.accumulator import PendingRecord, ProducerBatch
from pybroker.client.errors import ClientError
from pybroker.client.options import ProducerOptions
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


def encode(batch: ProducerBatch, codec: Codec, transactional: bool) -> bytes:
    """Return the batch as bytes, with its sequence numbers if it has any."""
    builder = BatchBuilder(codec)
    for record in batch.records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build(
        batch.producer_id, batch.producer_epoch, batch.base_sequence, transactional=transactional
    )


def produce_request(batches: Iterable[ProducerBatch], options: ProducerOptions) -> ProduceRequest:
    """Return a request with these encoded batches, at most one for each partition."""
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


def fail_record(
    record: PendingRecord, error: ClientError, cause: BaseException | None = None
) -> None:
    """Complete the future of a record with `error`, whose cause is `cause`, unless it is already
    done."""
    error.__cause__ = cause
    if not record.delivery.done():
        record.delivery.set_exception(error)
