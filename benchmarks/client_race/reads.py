"""The rows of consumers: the rate at which a client returns records that are already in the log.

A record has a key of 10 bytes and a value of 90 bytes, half of it random. The producer's batches
have at most 16 KiB before compression, which is Kafka's default. All clients have their default
options, check the checksums, and get up to 500 records in a call. The program looks at the value of
each record. The time begins when the first records have arrived, so it does not include connecting
and joining the group.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import aiokafka
import confluent_kafka

from benchmarks.client_race.rows import Goal, Row, Setting, Way
from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition

MANY: Final = 500
"""The maximum number of records of a call, Kafka's default of max.poll.records."""
KEY_BYTES: Final = 10
VALUE_BYTES: Final = 90
BATCH_BYTES: Final = 16_384
PATIENCE_MS: Final = 30_000
TIMES: Final = 5
"""The factor of the number of records beside the rows of producers."""
TEXT: Final = b'{"kind": "order", "state": "paid", "customer": '
GETMANY, ASYNC_FOR, ARROW = "getmany", "async for", "poll_arrow"
AIO_MANY, AIO_FOR, CONSUME = "aiokafka getmany", "aiokafka async for", "confluent consume(500)"


class Stopwatch:
    """Counts records from the moment at which the first ones have arrived."""

    def __init__(self, records: int) -> None:
        self._left = records
        self._counted = 0
        self._began = 0.0

    def add(self, count: int) -> bool:
        """Count more records. Return whether more are to come."""
        if self._began:
            self._counted += count
        else:
            self._began = time.perf_counter()
        self._left -= count
        return self._left > 0

    def rate(self) -> float:
        return self._counted / (time.perf_counter() - self._began)


def topic_of(codec: str) -> str:
    return f"reads-{codec}"


def fill(codec: str) -> Callable[[Setting], Any]:
    """Return the function that creates the topic of the codec, unless it exists, and fills it."""

    async def prepare(setting: Setting) -> None:
        chance = random.Random(17)
        random_bytes = VALUE_BYTES // 2
        async with Admin(setting.servers) as admin:
            if topic_of(codec) in {topic.name for topic in await admin.list_topics()}:
                return
            made = await admin.create_topics([NewTopic(topic_of(codec), setting.partitions)])
            for result in made:
                result.check()
        async with Producer(
            setting.servers, compression_type=codec, linger_ms=50, batch_size=BATCH_BYTES
        ) as producer:
            for number in range(setting.records):
                value = chance.randbytes(random_bytes) + TEXT[: VALUE_BYTES - random_bytes]
                key = b"%0*d" % (KEY_BYTES, number)
                partition = number % setting.partitions
                await producer.send(topic_of(codec), value, key=key, partition=partition)

    return prepare


def options_of(group: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"auto_offset_reset": "earliest"}
    return found | {"group_id": f"readers-{uuid.uuid4()}"} if group else found


class Reads:
    """The ways to read the topic of one codec, with or without a group."""

    def __init__(self, codec: str, group: bool) -> None:
        self.topic = topic_of(codec)
        self.group = group

    def _ours(self, setting: Setting) -> Consumer:
        return Consumer(setting.servers, **options_of(self.group))

    def _choose(self, consumer: Consumer, setting: Setting) -> None:
        if self.group:
            consumer.subscribe([self.topic])
        else:
            consumer.assign(
                [TopicPartition(self.topic, number) for number in range(setting.partitions)]
            )

    async def getmany(self, setting: Setting) -> float:
        watch = Stopwatch(setting.records)
        async with self._ours(setting) as consumer:
            self._choose(consumer, setting)
            more = True
            while more:
                count = 0
                for records in (
                    await consumer.getmany(timeout_ms=PATIENCE_MS, max_records=MANY)
                ).values():
                    count += len(records)
                    for record in records:
                        assert record.value is not None
                more = watch.add(count)
            return watch.rate()

    async def async_for(self, setting: Setting) -> float:
        watch = Stopwatch(setting.records)
        async with self._ours(setting) as consumer:
            self._choose(consumer, setting)
            async for record in consumer:
                assert record.value is not None
                if not watch.add(1):
                    break
            return watch.rate()

    async def poll_arrow(self, setting: Setting) -> float:
        watch = Stopwatch(setting.records)
        async with self._ours(setting) as consumer:
            self._choose(consumer, setting)
            more = True
            while more:
                tables = await consumer.poll_arrow(PATIENCE_MS)
                more = watch.add(sum(table.num_rows for table in tables.values()))
            return watch.rate()

    async def aiokafka_getmany(self, setting: Setting) -> float:
        watch = Stopwatch(setting.records)
        async with self._aiokafka(setting) as consumer:
            await self._choose_aiokafka(consumer, setting)
            more = True
            while more:
                count = 0
                found = await consumer.getmany(timeout_ms=PATIENCE_MS, max_records=MANY)
                for records in found.values():
                    count += len(records)
                    for record in records:
                        assert record.value is not None
                more = watch.add(count)
            return watch.rate()

    async def aiokafka_for(self, setting: Setting) -> float:
        watch = Stopwatch(setting.records)
        async with self._aiokafka(setting) as consumer:
            await self._choose_aiokafka(consumer, setting)
            async for record in consumer:
                assert record.value is not None
                if not watch.add(1):
                    break
            return watch.rate()

    def _aiokafka(self, setting: Setting) -> Any:
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=setting.servers, **options_of(self.group)
        )

    async def _choose_aiokafka(self, consumer: Any, setting: Setting) -> None:
        if self.group:
            consumer.subscribe([self.topic])
        else:
            partitions = [
                aiokafka.TopicPartition(self.topic, number) for number in range(setting.partitions)
            ]
            consumer.assign(partitions)

    async def consume(self, setting: Setting) -> float:
        watch = Stopwatch(setting.records)
        options = {
            "bootstrap.servers": setting.servers,
            "auto.offset.reset": "earliest",
            "group.id": f"readers-{uuid.uuid4()}",  # confluent-kafka requires it
            "check.crcs": True,
            "log_level": 0,
        }
        with closing(confluent_kafka.Consumer(options)) as consumer:
            if self.group:
                consumer.subscribe([self.topic])
            else:
                consumer.assign(
                    [
                        confluent_kafka.TopicPartition(
                            self.topic, number, confluent_kafka.OFFSET_BEGINNING
                        )
                        for number in range(setting.partitions)
                    ]
                )
            more = True
            while more:
                messages = consumer.consume(MANY, PATIENCE_MS / 1_000)
                for message in messages:
                    if message.error() is not None:
                        raise confluent_kafka.KafkaException(message.error())
                    assert message.value() is not None
                more = watch.add(len(messages))
            return watch.rate()


def rows() -> Iterator[Row]:
    for codec in ("none", "lz4"):
        for group in (False, True):
            reads = Reads(codec, group)
            yield Row(
                f"read, codec {codec}, {'with' if group else 'without'} a group",
                (
                    Way(GETMANY, reads.getmany),
                    Way(ASYNC_FOR, reads.async_for),
                    Way(ARROW, reads.poll_arrow),
                    Way(AIO_MANY, reads.aiokafka_getmany),
                    Way(AIO_FOR, reads.aiokafka_for),
                    Way(CONSUME, reads.consume),
                ),
                (
                    Goal(GETMANY, AIO_MANY, 2.5),
                    Goal(GETMANY, CONSUME, 1.0),
                    Goal(ASYNC_FOR, AIO_FOR, 2.0),
                    Goal(ARROW, CONSUME, 5.0),
                ),
                fill(codec),
                times=TIMES,
            )
