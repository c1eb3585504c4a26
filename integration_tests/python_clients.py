"""confluent-kafka (librdkafka), kafka-python, aiokafka and our own client with the common interface
of `integration_tests.samples`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
from confluent_kafka import admin as confluent_admin
from confluent_kafka.cimpl import NewTopic

import pybroker.client
from integration_tests.samples import SAMPLES, WITHOUT_NULL_HEADERS, Read, Sample
from pybroker.client.keywords import CompressionType
from pybroker.model import TopicPartition
from unit_tests.patience import PATIENCE_MS, PATIENCE_S

T = TypeVar("T")


class ConfluentKafka:
    """The client confluent-kafka, which uses librdkafka."""

    name = "confluent-kafka"
    samples = SAMPLES

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create_topic(self, topic: str) -> None:
        admin = confluent_admin.AdminClient({"bootstrap.servers": self._bootstrap})
        wanted = NewTopic(topic, num_partitions=1)
        for answer in admin.create_topics([wanted]).values():
            answer.result(PATIENCE_S)

    def produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 100,
            }
        )
        errors: list[object] = []
        for sample in samples:
            producer.produce(
                topic,
                value=sample.value,
                key=sample.key,
                partition=0,
                headers=list(sample.headers),
                timestamp=sample.timestamp,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        unsent = producer.flush(PATIENCE_S)
        assert not unsent and not errors, f"{unsent} unsent, errors: {errors}"

    def _consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "never-joined",
                "enable.auto.commit": False,
            }
        )

    def read(self, topic: str, offset: int = 0) -> list[Read]:
        consumer = self._consumer()
        try:
            partition = confluent_kafka.TopicPartition(topic, 0, offset)
            _, end = consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)
            consumer.assign([partition])
            records: list[Read] = []
            while offset + len(records) < end:
                message = consumer.poll(PATIENCE_S)
                assert message is not None, f"read only {len(records)} of {end - offset}"
                assert message.error() is None, message.error()
                records.append(_from_confluent(message))
            return records
        finally:
            consumer.close()

    def read_all(self, topic: str, partitions: int, count: int) -> list[tuple[int, int, bytes]]:
        """As they come: partition, offset and value of `count` records of all partitions."""
        consumer = self._consumer()
        try:
            consumer.assign(
                [confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
            )
            records: list[tuple[int, int, bytes]] = []
            while len(records) < count:
                message = consumer.poll(PATIENCE_S)
                assert message is not None, f"read only {len(records)} of {count}"
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                records.append((partition, offset, _bytes(message.value()) or b""))
            return records
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, timestamp: int) -> int:
        consumer = self._consumer()
        try:
            wanted = confluent_kafka.TopicPartition(topic, 0, timestamp)
            (found,) = consumer.offsets_for_times([wanted], timeout=PATIENCE_S)
            return -1 if found.offset == confluent_kafka.OFFSET_END else int(found.offset)
        finally:
            consumer.close()


def _from_confluent(message: confluent_kafka.Message) -> Read:
    key, value, offset = message.key(), message.value(), message.offset()
    assert offset is not None
    pairs: Any = message.headers() or []
    headers = tuple((name, _bytes(content)) for name, content in pairs)
    return Read(offset, _bytes(key), _bytes(value), headers, message.timestamp()[1])


def _bytes(value: Any) -> bytes | None:
    assert value is None or isinstance(value, bytes), f"{type(value)} is not bytes"
    return value


class KafkaPython:
    """The client kafka-python 3."""

    name = "kafka-python"
    samples = WITHOUT_NULL_HEADERS

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create_topic(self, topic: str) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=self._bootstrap)
        try:
            admin.create_topics(
                [kafka.admin.NewTopic(topic, num_partitions=1, replication_factor=1)]
            )
        finally:
            admin.close()

    def produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=100,
            batch_size=900_000,
        )
        try:
            answers = [
                producer.send(
                    topic,
                    value=sample.value,
                    key=sample.key,
                    headers=list(sample.headers),
                    partition=0,
                    timestamp_ms=sample.timestamp,
                )
                for sample in samples
            ]
            producer.flush(PATIENCE_S)
            for answer in answers:
                answer.get(PATIENCE_S)
        finally:
            producer.close()

    def read(self, topic: str, offset: int = 0) -> list[Read]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self._bootstrap)
        try:
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            end = consumer.end_offsets([partition])[partition]
            records: list[Read] = []
            while consumer.position(partition) < end:
                polled = consumer.poll(timeout_ms=PATIENCE_MS)
                assert polled, f"read only {len(records)} of {end - offset}"
                for r in polled[partition]:
                    headers = tuple((name, value) for name, value in r.headers)
                    records.append(Read(r.offset, r.key, r.value, headers, r.timestamp))
            return records
        finally:
            consumer.close()

    def read_all(self, topic: str, partitions: int, count: int) -> list[tuple[int, int, bytes]]:
        """As they come: partition, offset and value of `count` records of all partitions."""
        consumer = kafka.KafkaConsumer(bootstrap_servers=self._bootstrap)
        try:
            wanted = [kafka.TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(wanted)
            consumer.seek_to_beginning(*wanted)
            records: list[tuple[int, int, bytes]] = []
            while len(records) < count:
                polled = consumer.poll(timeout_ms=PATIENCE_MS)
                assert polled, f"read only {len(records)} of {count}"
                for found in polled.values():
                    records += [(r.partition, r.offset, r.value) for r in found]
            return records
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, timestamp: int) -> int:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self._bootstrap)
        try:
            partition = kafka.TopicPartition(topic, 0)
            found = consumer.offsets_for_times({partition: timestamp})[partition]
            return -1 if found is None else int(found.offset)
        finally:
            consumer.close()


class AioKafka:
    """The client aiokafka, with a new event loop for each call."""

    name = "aiokafka"
    samples = SAMPLES

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create_topic(self, topic: str) -> None:
        _run(self._create_topic(topic))

    async def _create_topic(self, topic: str) -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            wanted = aiokafka.admin.NewTopic(topic, num_partitions=1, replication_factor=1)
            answer = await admin.create_topics([wanted])
            assert all(error[1] == 0 for error in answer.topic_errors), answer
        finally:
            await admin.close()

    def produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        _run(self._produce(topic, samples, codec=codec, idempotent=idempotent))

    async def _produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=100,
            max_batch_size=900_000,
        )
        await producer.start()
        try:
            answers = [
                await producer.send(
                    topic,
                    value=sample.value,
                    key=sample.key,
                    headers=list(sample.headers),
                    partition=0,
                    timestamp_ms=sample.timestamp,
                )
                for sample in samples
            ]
            for answer in answers:
                await asyncio.wait_for(answer, PATIENCE_S)
        finally:
            await producer.stop()

    def read(self, topic: str, offset: int = 0) -> list[Read]:
        return _run(self._read(topic, offset))

    async def _read(self, topic: str, offset: int) -> list[Read]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            end = (await consumer.end_offsets([partition]))[partition]
            records: list[Read] = []
            while await consumer.position(partition) < end:
                r = await asyncio.wait_for(consumer.getone(partition), PATIENCE_S)
                records.append(Read(r.offset, r.key, r.value, tuple(r.headers), r.timestamp))
            return records
        finally:
            await consumer.stop()

    def offset_for_time(self, topic: str, timestamp: int) -> int:
        return _run(self._offset_for_time(topic, timestamp))

    async def _offset_for_time(self, topic: str, timestamp: int) -> int:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
            return -1 if found is None else int(found.offset)
        finally:
            await consumer.stop()


class Pybroker:
    """The project's own client, with a new event loop for each call."""

    name = "pybroker"
    samples = SAMPLES

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create_topic(self, topic: str) -> None:
        _run(self._create_topic(topic))

    async def _create_topic(self, topic: str) -> None:
        async with pybroker.client.Admin(self._bootstrap) as admin:
            (result,) = await admin.create_topics([pybroker.client.NewTopic(topic, partitions=1)])
            result.check()

    def produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        _run(self._produce(topic, samples, codec=codec, idempotent=idempotent))

    async def _produce(
        self, topic: str, samples: Sequence[Sample], *, codec: str, idempotent: bool
    ) -> None:
        async with pybroker.client.Producer(
            self._bootstrap,
            compression_type=cast("CompressionType", codec),
            enable_idempotence=idempotent,
            linger_ms=100,
            batch_size=900_000,
        ) as producer:
            deliveries = [
                await producer.send(
                    topic,
                    sample.value,
                    key=sample.key,
                    headers=sample.headers,
                    partition=0,
                    timestamp_ms=sample.timestamp,
                )
                for sample in samples
            ]
            for delivery in deliveries:
                await delivery

    def read(self, topic: str, offset: int = 0) -> list[Read]:
        return _run(self._read(topic, offset))

    async def _read(self, topic: str, offset: int) -> list[Read]:
        partition = pybroker.client.TopicPartition(topic, 0)
        async with pybroker.client.Consumer(self._bootstrap) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, offset)
            end = (await consumer.end_offsets([partition]))[partition]
            records: list[Read] = []
            while await consumer.position(partition) < end:
                r = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
                records.append(Read(r.offset, r.key, r.value, tuple(r.headers), r.timestamp))
            return records

    def read_all(self, topic: str, partitions: int, count: int) -> list[tuple[int, int, bytes]]:
        """As they come: partition, offset and value of `count` records of all partitions."""
        return _run(self._read_all(topic, partitions, count))

    async def _read_all(
        self, topic: str, partitions: int, count: int
    ) -> list[tuple[int, int, bytes]]:
        async with pybroker.client.Consumer(
            self._bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
            records: list[tuple[int, int, bytes]] = []
            while len(records) < count:
                r = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
                records.append((r.partition, r.offset, r.value or b""))
            return records

    def offset_for_time(self, topic: str, timestamp: int) -> int:
        return _run(self._offset_for_time(topic, timestamp))

    async def _offset_for_time(self, topic: str, timestamp: int) -> int:
        partition = pybroker.client.TopicPartition(topic, 0)
        async with pybroker.client.Consumer(self._bootstrap) as consumer:
            found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
            return -1 if found is None else found.offset


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end in a new event loop."""
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))
