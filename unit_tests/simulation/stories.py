"""What the applications of the small stories do: one topic, one partition."""

from __future__ import annotations

from pybroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition

PARTITION = TopicPartition("orders", 0)


async def create(bootstrap: str, configs: dict[str, str] | None = None) -> None:
    async with Admin(bootstrap) as admin:
        for result in await admin.create_topics([NewTopic("orders", 1, 3, configs=configs or {})]):
            result.check()


async def produce(bootstrap: str, count: int, key: bytes | None = None) -> list[int]:
    """The offsets of `count` numbered values, each sent after the one before was stored."""
    async with Producer(bootstrap) as producer:
        return [
            (await (await producer.send("orders", b"%d" % number, key=key))).offset
            for number in range(count)
        ]


async def read_on(bootstrap: str, seen: list[bytes | None]) -> None:
    """Append to `seen` what comes behind it, for ever."""
    async with Consumer(bootstrap) as consumer:
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, len(seen))
        async for record in consumer:
            seen.append(record.value)


async def read_all(bootstrap: str, count: int) -> list[bytes | None]:
    """The first `count` values."""
    async with Consumer(bootstrap) as consumer:
        consumer.assign([PARTITION])
        consumer.seek_to_beginning()
        return [(await consumer.getone()).value for _ in range(count)]
