"""Tests of the project's own client against a running broker, which is also killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, Literal

import confluent_kafka
import pyarrow
import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from pybroker.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Admin,
    Consumer,
    NewTopic,
    Producer,
    RecordMetadata,
    TopicPartition,
)
from pybroker.client.errors import ResponseError, WouldBlock
from pybroker.client.keywords import CompressionType
from pybroker.errors import ErrorCode
from unit_tests.patience import PATIENCE_S

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = 300


async def make_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    async with Admin(bootstrap) as admin:
        (result,) = await admin.create_topics([NewTopic(topic, partitions)])
        result.check()


async def read(bootstrap: str, topic: str, count: int, **options: Any) -> list[bytes | None]:
    """Return the values of the topic's first `count` records, partition by partition."""
    found: dict[TopicPartition, list[bytes | None]] = {}
    async with Consumer(bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign(await consumer.partitions_for(topic))
        async with asyncio.timeout(PATIENCE_S):
            while sum(map(len, found.values())) < count:
                for key, records in (await consumer.getmany(timeout_ms=1_000)).items():
                    found.setdefault(key, []).extend(record.value for record in records)
    return [value for key in sorted(found) for value in found[key]]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["all", 1, 0])
async def test_records_are_read_as_they_were_sent(
    broker: Broker, topic: str, codec: CompressionType, acks: Literal["all", 0, 1]
) -> None:
    await make_topic(broker.bootstrap, topic)
    values = [b"value %d" % number for number in range(RECORDS)]
    async with Producer(
        broker.bootstrap, compression_type=codec, acks=acks, linger_ms=5
    ) as producer:
        deliveries = [
            await producer.send(topic, value, key=b"k", headers={"h": b"1", "n": None})
            for value in values
        ]
        offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == ([-1] * RECORDS if acks == 0 else list(range(RECORDS)))
    for level in ("read_uncommitted", "read_committed"):
        assert await read(broker.bootstrap, topic, RECORDS, isolation_level=level) == values
    async with Consumer(broker.bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 7)
        record = await consumer.getone()
        assert (record.offset, record.key, record.value) == (7, b"k", b"value 7")
        assert record.headers == (("h", b"1"), ("n", None))


Send = Callable[[Producer, str, list[bytes]], Awaitable[list[RecordMetadata]]]


async def by_send(producer: Producer, topic: str, values: list[bytes]) -> list[RecordMetadata]:
    return [await each for each in [await producer.send(topic, value) for value in values]]


async def by_send_nowait(
    producer: Producer, topic: str, values: list[bytes]
) -> list[RecordMetadata]:
    deliveries = []
    for value in values:
        try:
            deliveries.append(producer.send_nowait(topic, value))
        except WouldBlock:
            deliveries.append(await producer.send(topic, value))
    return [await each for each in deliveries]


async def by_send_many(producer: Producer, topic: str, values: list[bytes]) -> list[RecordMetadata]:
    return await (await producer.send_many(topic, values))


async def by_send_arrow(
    producer: Producer, topic: str, values: list[bytes]
) -> list[RecordMetadata]:
    columns: dict[str, Any] = {"value": values}
    return await (await producer.send_arrow(topic, pyarrow.record_batch(columns)))


Found = dict[TopicPartition, dict[int, bytes | None]]


async def by_getmany(consumer: Consumer, found: Found) -> None:
    for key, records in (await consumer.getmany(timeout_ms=1_000)).items():
        found.setdefault(key, {}).update((record.offset, record.value) for record in records)


async def by_iteration(consumer: Consumer, found: Found) -> None:
    async for record in consumer:
        key = TopicPartition(record.topic, record.partition)
        found.setdefault(key, {})[record.offset] = record.value
        return


async def by_poll_arrow(consumer: Consumer, found: Found) -> None:
    for key, batch in (await consumer.poll_arrow(1_000)).items():
        columns = [batch.column(name).to_pylist() for name in ("offset", "value")]
        found.setdefault(key, {}).update(zip(*columns, strict=True))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("send", [by_send, by_send_nowait, by_send_many, by_send_arrow])
async def test_each_way_to_send_and_to_read_agrees(
    broker: Broker, topic: str, send: Send, codec: CompressionType
) -> None:
    """10,000 records in 4 partitions have the reported positions, however they are read."""
    await make_topic(broker.bootstrap, topic, 4)
    values = [b"%d " % number * 10 for number in range(10_000)]
    async with Producer(broker.bootstrap, compression_type=codec, linger_ms=2) as producer:
        reported = await send(producer, topic, values)
    expected: Found = {}
    for place, value in zip(reported, values, strict=True):
        offsets = expected.setdefault(TopicPartition(topic, place.partition), {})
        assert offsets.setdefault(place.offset, value) == value, "two records have one offset"
    assert len(expected) == 4
    assert all(sorted(offsets) == [*range(len(offsets))] for offsets in expected.values())
    for take in (by_getmany, by_iteration, by_poll_arrow):
        found: Found = {}
        async with (
            asyncio.timeout(PATIENCE_S),
            Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign(await consumer.partitions_for(topic))
            while sum(map(len, found.values())) < len(values):
                await take(consumer, found)
        assert found == expected, take.__name__


@pytest.mark.parametrize("codec", CODECS)
async def test_another_client_reads_large_batches(
    broker: Broker, topic: str, codec: CompressionType
) -> None:
    """Large batches are compressed in steps, so that the frames have several parts."""
    await make_topic(broker.bootstrap, topic)
    values = [b"%d " % number * 2_000 for number in range(400)]
    async with Producer(broker.bootstrap, compression_type=codec, batch_size=900_000) as producer:
        await (await producer.send_many(topic, values))
    assert await asyncio.to_thread(confluent_values, broker.bootstrap, topic, 400) == values


def confluent_values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    options = {"bootstrap.servers": bootstrap, "group.id": "large", "check.crcs": True}
    with closing(confluent_kafka.Consumer(options)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found: list[bytes | None] = []
        while len(found) < count:
            for message in consumer.consume(count, PATIENCE_S):
                assert message.error() is None
                found.append(message.value())
        return found


async def test_topics_are_created_described_and_deleted(broker: Broker, topic: str) -> None:
    async with Admin(broker.bootstrap) as admin:
        dry, bad = await admin.create_topics(
            [NewTopic(topic, 2), NewTopic("not a name")], validate_only=True
        )
        assert dry.error is None
        assert bad.error is not None
        assert bad.error.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await admin.describe_topics([topic]))[topic].error != ErrorCode.NONE
        cluster = await admin.describe_cluster()
        assert cluster.controller is not None
        node = cluster.controller.id
        (made,) = await admin.create_topics(
            [NewTopic(topic, assignments={0: [node], 1: [node]}, configs={"retention.ms": "9999"})]
        )
        assert made.check().partitions == 2
        assert made.configs["retention.ms"] == "9999"
        (again,) = await admin.create_topics([NewTopic(topic)])
        with pytest.raises(ResponseError, match="TOPIC_ALREADY_EXISTS"):
            again.check()
        described = (await admin.describe_topics([topic]))[topic]
        assert [info.replicas for info in described.partitions.values()] == [(node,), (node,)]
        (gone,) = await admin.delete_topics([topic])
        assert gone.error is None
        assert topic not in {info.name for info in await admin.list_topics()}


async def test_offsets_are_found_by_time_and_at_the_ends(broker: Broker, topic: str) -> None:
    await make_topic(broker.bootstrap, topic)
    async with Producer(broker.bootstrap, batch_size=0) as producer:
        for number in range(5):
            moment = 1_700_000_000_000 + number * 1_000
            await (await producer.send(topic, b"x", timestamp_ms=moment))
    partition = TopicPartition(topic, 0)
    async with Admin(broker.bootstrap) as admin:
        for moment, offset in [
            (EARLIEST, 0),
            (LATEST, 5),
            (MAX_TIMESTAMP, 4),
            (1_700_000_001_500, 2),
            (1_800_000_000_000, -1),
        ]:
            answer = (await admin.list_offsets({partition: moment}))[partition]
            assert (answer.offset, answer.error) == (offset, None)


async def test_the_first_record_creates_the_topic(broker: Broker, topic: str) -> None:
    async with Producer(broker.bootstrap) as producer:
        assert (await (await producer.send(topic, b"x"))).offset == 0
    assert await read(broker.bootstrap, topic, 1) == [b"x"]


async def test_a_waiting_consumer_gets_later_records(broker: Broker, topic: str) -> None:
    await make_topic(broker.bootstrap, topic)
    partition = TopicPartition(topic, 0)
    async with Consumer(broker.bootstrap) as consumer, Producer(broker.bootstrap) as producer:
        consumer.assign([partition])
        assert await consumer.position(partition) == 0
        waiting = asyncio.ensure_future(consumer.getone())
        await (await producer.send(topic, b"late"))
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).value == b"late"


async def test_no_record_is_lost_duplicated_or_reordered_across_kill_9(
    new_broker: BrokerMaker, topic: str
) -> None:
    broker = new_broker()
    broker.start()
    await make_topic(broker.bootstrap, topic)
    values = [b"%d" % number for number in range(2_000)]
    async with Producer(broker.bootstrap, batch_size=500, linger_ms=1) as producer:
        deliveries = []
        restart: asyncio.Future[None] | None = None
        for number, value in enumerate(values):
            deliveries.append(await producer.send(topic, value))
            if number == 700:
                await deliveries[600]
                broker.kill9()
                restart = asyncio.ensure_future(asyncio.to_thread(broker.start))
        assert restart is not None
        await restart
        offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == list(range(len(values)))
    assert await read(broker.bootstrap, topic, len(values)) == values
