"""The encoding of the producer's batches, and of the requests that carry them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from functools import partial
from typing import NoReturn

from pybroker.client.accumulator import ProducerBatch
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.client.options import ProducerOptions
from pybroker.records.batch import TRANSACTIONAL_FLAG
from pybroker.records.builder import pack_batch
from pybroker.records.compression import Codec, compress_steps
from pybroker.records.record import Record, decode_records
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

Sent = Callable[[], Awaitable[ProduceResponse | None]]
"""Gives the response to a request, None with acks=0, or raises the ClientError of the request."""


def compress_batch(batch: ProducerBatch, codec: Codec) -> Generator[int, None, None]:
    """Compress the records of a closed batch, and set the batch's `payload` at the end. Each step
    takes a few milliseconds, and yields the number of bytes that it has compressed."""
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


def write_request(
    connection: Connection, request: ProduceRequest, options: ProducerOptions
) -> Sent:
    """Write the request, and return a function that gives the awaitable of the response. With
    acks=0 the request is not written at once, but when the returned function is called and its
    result awaited."""
    limit_s = options.request_timeout_ms / 1_000
    if options.acks == 0:
        return partial(connection.tell, ApiKey.PRODUCE, request, timeout_s=limit_s)
    try:
        sent = connection.send(ApiKey.PRODUCE, request, ProduceResponse, timeout_s=limit_s)
    except ClientError as error:
        return partial(_fail, error)
    return lambda: sent


def _fail(error: ClientError) -> NoReturn:
    raise error
