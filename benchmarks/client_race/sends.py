"""The rows of producers: the rate at which a client sends records, from the first call until all
records are acknowledged.

A value has 100 bytes. All clients are idempotent, wait up to 5 ms for more records, and send
batches of up to 64 KiB.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiokafka
import confluent_kafka
import pyarrow

from benchmarks.client_race.rows import Goal, Row, Setting, Way
from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition, WouldBlock

VALUE: Final = b'{"kind": "order", "state": "paid", "customer": 12345678}'.ljust(100)
LINGER_MS: Final = 5
BATCH_BYTES: Final = 65_536
KEYS: Final = 1_000
"""The number of different keys."""
MANY: Final = 1_000
"""The number of records in a call of `send_many` or `send_arrow`."""
TURN: Final = 200
"""The number of calls of `send_nowait` after which the program yields to the event loop."""
PARTITIONS_MANY: Final = 512
LATENCY_RECORDS: Final = 2_000
LATENCY_STEP_S: Final = 0.001
SEND, NOWAIT, SEND_MANY, ARROW = "send", "send_nowait", "send_many", "send_arrow"
AIO_SEND, PRODUCE = "aiokafka send", "confluent produce"


def key_of(number: int) -> bytes:
    return b"%d" % (number % KEYS)


async def create(setting: Setting, topic: str, partitions: int) -> None:
    async with Admin(setting.servers) as admin:
        if topic not in {each.name for each in await admin.list_topics()}:
            for result in await admin.create_topics([NewTopic(topic, partitions)]):
                result.check()


class Sends:
    """The ways to send records with one codec, with or without keys, to a topic with a number of
    partitions."""

    def __init__(self, codec: str, keyed: bool, partitions: int | None = None) -> None:
        self._codec = codec
        self._keyed = keyed
        self._partitions = partitions
        self._topic = f"sends-{partitions or 'default'}"

    async def prepare(self, setting: Setting) -> None:
        await create(setting, self._topic, self._partitions or setting.partitions)

    async def touch(self, setting: Setting) -> None:
        """Send a record to each partition."""
        async with Producer(setting.servers) as producer:
            for partition in await producer.partitions_for(self._topic):
                await producer.send(self._topic, VALUE, partition=partition)

    def _keys(self, setting: Setting) -> list[bytes | None]:
        return [key_of(number) if self._keyed else None for number in range(setting.records)]

    async def _ours(
        self, setting: Setting, work: Callable[[Producer, list[bytes | None]], Awaitable[None]]
    ) -> float:
        keys = self._keys(setting)
        async with Producer(
            setting.servers,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
            compression_type=self._codec,  # type: ignore[arg-type]
        ) as producer:
            await producer.send_and_wait(self._topic, VALUE)
            began = time.perf_counter()
            await work(producer, keys)
            await producer.flush()
            return len(keys) / (time.perf_counter() - began)

    async def send(self, setting: Setting) -> float:
        async def work(producer: Producer, keys: list[bytes | None]) -> None:
            for key in keys:
                await producer.send(self._topic, VALUE, key=key)

        return await self._ours(setting, work)

    async def send_nowait(self, setting: Setting) -> float:
        async def work(producer: Producer, keys: list[bytes | None]) -> None:
            for number, key in enumerate(keys):
                try:
                    producer.send_nowait(self._topic, VALUE, key=key)
                except WouldBlock:
                    await producer.send(self._topic, VALUE, key=key)
                if number % TURN == 0:
                    await asyncio.sleep(0)

        return await self._ours(setting, work)

    async def send_many(self, setting: Setting) -> float:
        async def work(producer: Producer, keys: list[bytes | None]) -> None:
            values = [VALUE] * MANY
            for start in range(0, len(keys), MANY):
                part = keys[start : start + MANY]
                await producer.send_many(
                    self._topic, values[: len(part)], part if self._keyed else None
                )

        return await self._ours(setting, work)

    async def send_arrow(self, setting: Setting) -> float:
        async def work(producer: Producer, keys: list[bytes | None]) -> None:
            for batch in batches:
                await producer.send_arrow(self._topic, batch)

        keys = self._keys(setting)
        batches = []
        for start in range(0, len(keys), MANY):
            part = keys[start : start + MANY]
            columns: dict[str, Any] = {"value": [VALUE] * len(part)}
            if self._keyed:
                columns["key"] = part
            batches.append(pyarrow.record_batch(columns))
        return await self._ours(setting, work)

    async def aiokafka_send(self, setting: Setting) -> float:
        keys = self._keys(setting)
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=setting.servers,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            enable_idempotence=True,
            compression_type=None if self._codec == "none" else self._codec,
        )
        await producer.start()
        try:
            await producer.send_and_wait(self._topic, VALUE)
            began = time.perf_counter()
            for key in keys:
                await producer.send(self._topic, VALUE, key=key)
            await producer.flush()
            return len(keys) / (time.perf_counter() - began)
        finally:
            await producer.stop()

    async def confluent_produce(self, setting: Setting) -> float:
        keys = self._keys(setting)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": setting.servers,
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "enable.idempotence": True,
                "compression.type": self._codec,
                "queue.buffering.max.messages": 10_000_000,
            }
        )
        producer.produce(self._topic, VALUE)
        producer.flush()
        began = time.perf_counter()
        for key in keys:
            producer.produce(self._topic, VALUE, key)
            producer.poll(0)
        producer.flush()
        return len(keys) / (time.perf_counter() - began)

    def row(self) -> Row:
        ways = (
            Way(SEND, self.send),
            Way(NOWAIT, self.send_nowait),
            Way(SEND_MANY, self.send_many),
            Way(ARROW, self.send_arrow),
            Way(AIO_SEND, self.aiokafka_send),
            Way(PRODUCE, self.confluent_produce),
        )
        goals = (
            Goal(SEND, AIO_SEND, 3),
            Goal(NOWAIT, AIO_SEND, 5),
            Goal(NOWAIT, PRODUCE, 0.6),
            Goal(SEND_MANY, PRODUCE, 2),
            Goal(ARROW, PRODUCE, 2),
        )
        name = f"send, codec {self._codec}, {'with' if self._keyed else 'without'} keys"
        return Row(name, ways, goals, self.prepare)


def partitions_row() -> Row:
    few, many = Sends("none", False), Sends("none", False, PARTITIONS_MANY)
    crowded = f"send, {PARTITIONS_MANY} partitions"

    async def prepare(setting: Setting) -> None:
        """Create both topics, and send a record to each partition. The first append to a partition
        creates files, which the goal is not about."""
        for each in (few, many):
            await each.prepare(setting)
            await each.touch(setting)

    ways = (Way(SEND, few.send), Way(crowded, many.send))
    return Row("send, many partitions", ways, (Goal(crowded, SEND, 1 / 1.1),), prepare)


class Latency:
    """The time from the call of `send` until a consumer returns the record, at 1,000 records per
    second. The rate is the reciprocal of the median time."""

    TOPIC: Final = "latency"

    async def prepare(self, setting: Setting) -> None:
        await create(setting, self.TOPIC, 1)

    async def ours(self, setting: Setting) -> float:
        async with Producer(setting.servers) as producer, Consumer(setting.servers) as consumer:
            place = TopicPartition(self.TOPIC, 0)
            consumer.assign([place])
            consumer.seek_to_end(place)
            await consumer.position(place)

            async def send(value: bytes) -> None:
                await producer.send(self.TOPIC, value)

            async def read() -> list[bytes]:
                found = await consumer.getmany(timeout_ms=60_000)
                return [record.value or b"" for records in found.values() for record in records]

            return await _latency(send, read)

    async def aiokafka(self, setting: Setting) -> float:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=setting.servers, enable_idempotence=True
        )
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=setting.servers)
        await producer.start()
        await consumer.start()
        try:
            place = aiokafka.TopicPartition(self.TOPIC, 0)
            consumer.assign([place])
            await consumer.seek_to_end(place)
            await consumer.position(place)

            async def send(value: bytes) -> None:
                await producer.send(self.TOPIC, value)

            async def read() -> list[bytes]:
                found = await consumer.getmany(timeout_ms=60_000)
                return [record.value for records in found.values() for record in records]

            return await _latency(send, read)
        finally:
            await producer.stop()
            await consumer.stop()

    def row(self) -> Row:
        ours, theirs = "produce to consume", "aiokafka produce to consume"
        ways = (Way(ours, self.ours), Way(theirs, self.aiokafka))
        return Row(
            "latency at 1,000 records/s (1/p50)", ways, (Goal(ours, theirs, 1),), self.prepare
        )


async def _latency(
    send: Callable[[bytes], Awaitable[None]], read: Callable[[], Awaitable[list[bytes]]]
) -> float:
    sent: list[float] = []

    async def sending() -> None:
        began = time.perf_counter()
        for number in range(LATENCY_RECORDS):
            await asyncio.sleep(max(0.0, began + number * LATENCY_STEP_S - time.perf_counter()))
            sent.append(time.perf_counter())
            await send(b"%d" % number)

    task = asyncio.create_task(sending())
    times: list[float] = []
    while len(times) < LATENCY_RECORDS:
        values = await read()
        now = time.perf_counter()
        times += [now - sent[int(value)] for value in values]
    await task
    return 1 / statistics.median(times)


def rows() -> list[Row]:
    sending = [Sends(codec, keyed).row() for codec in ("none", "lz4") for keyed in (False, True)]
    return [*sending, partitions_row(), Latency().row()]
