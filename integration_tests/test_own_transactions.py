"""Tests of the transactions of the project's own client against a running broker."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.test_documents import program, running
from integration_tests.test_own_client import make_topic, read
from pybroker.client import (
    AbortableTransactionError,
    Consumer,
    Producer,
    ProducerFenced,
    TopicPartition,
)
from unit_tests.patience import PATIENCE_S

PARTITIONS: Final = 3
INPUT_RECORDS: Final = 40
NUMBERS: Final = 20_000
KILL_EVERY: Final = 4_000


def producer(broker: Broker, name: str, **options: Any) -> Producer:
    return Producer(broker.bootstrap, transactional_id=name, **options)


async def values(broker: Broker, topic: str, count: int, level: str) -> list[bytes]:
    """Read the topic until `count` records have arrived, and return their values, sorted."""
    found = await read(broker.bootstrap, topic, count, isolation_level=level)
    return sorted(value for value in found if value is not None)


async def test_committed_records_are_read_and_aborted_records_are_not(
    broker: Broker, topic: str
) -> None:
    await make_topic(broker.bootstrap, topic, PARTITIONS)
    committed, aborted = [], []
    async with producer(broker, topic) as sender:
        for number in range(12):
            value = b"%02d" % number
            sender.begin_transaction()
            for partition in range(PARTITIONS):
                await sender.send(topic, value, partition=partition)
            if number % 3:
                await sender.commit_transaction()
                committed += [value] * PARTITIONS
            else:
                await sender.flush()
                await sender.abort_transaction()
                aborted += [value] * PARTITIONS
        with pytest.raises(ZeroDivisionError):
            async with sender.transaction():
                await (await sender.send(topic, b"never", partition=0))
                raise ZeroDivisionError
        async with sender.transaction():
            await sender.send(topic, b"~end", partition=0)
        async with sender.transaction():
            pass
    committed.append(b"~end")
    everything = [*committed, *aborted, b"never"]
    assert await values(broker, topic, len(committed), "read_committed") == sorted(committed)
    uncommitted = await values(broker, topic, len(everything), "read_uncommitted")
    assert uncommitted == sorted(everything)


async def test_a_cancelled_block_aborts(broker: Broker, topic: str) -> None:
    await make_topic(broker.bootstrap, topic)
    async with producer(broker, topic) as sender:
        written = asyncio.Event()

        async def never_ends() -> None:
            async with sender.transaction():
                await (await sender.send(topic, b"cancelled"))
                written.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(never_ends())
        async with asyncio.timeout(PATIENCE_S):
            await written.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with sender.transaction():
            await sender.send(topic, b"next")
    assert await values(broker, topic, 1, "read_committed") == [b"next"]
    assert await values(broker, topic, 2, "read_uncommitted") == [b"cancelled", b"next"]


async def test_a_later_producer_fences_and_aborts(broker: Broker, topic: str) -> None:
    await make_topic(broker.bootstrap, topic)
    async with producer(broker, topic) as first:
        first.begin_transaction()
        await (await first.send(topic, b"lost"))
        async with producer(broker, topic) as second:
            async with second.transaction():
                await second.send(topic, b"kept")
            with pytest.raises(ProducerFenced, match="another producer was started"):
                await first.commit_transaction()
            with pytest.raises(ProducerFenced):
                first.begin_transaction()
    assert await values(broker, topic, 1, "read_committed") == [b"kept"]


async def test_offsets_are_committed_with_the_records(broker: Broker, topic: str) -> None:
    """A read-process-write loop aborts every second transaction, and reads its records again."""
    source, target = f"{topic}-in", f"{topic}-out"
    await make_topic(broker.bootstrap, source)
    await make_topic(broker.bootstrap, target)
    expected = [b"%03d" % number for number in range(INPUT_RECORDS)]
    async with Producer(broker.bootstrap) as feeder:
        for value in expected:
            await feeder.send(source, value)
    partition = TopicPartition(source, 0)
    async with (
        Consumer(
            broker.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
            max_poll_records=4,
        ) as consumer,
        producer(broker, topic) as sender,
        asyncio.timeout(PATIENCE_S),
    ):
        consumer.subscribe([source])
        done, attempt = 0, 0
        while done < INPUT_RECORDS:
            records = (await consumer.getmany(timeout_ms=1_000)).get(partition, [])
            if not records:
                continue
            attempt += 1
            position = records[-1].offset + 1
            try:
                async with sender.transaction():
                    for record in records:
                        await sender.send(target, record.value)
                    await sender.send_offsets({partition: position}, consumer.group_metadata())
                    if attempt % 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                consumer.seek(partition, done)
            else:
                done = position
            kept = (await consumer.committed([partition]))[partition]
            assert (kept.offset if kept else 0) == done
    assert attempt >= INPUT_RECORDS // 4 * 2
    assert (
        await read(broker.bootstrap, target, INPUT_RECORDS, isolation_level="read_committed")
        == expected
    )


async def test_offsets_of_an_old_generation_abort_the_transaction(
    broker: Broker, topic: str
) -> None:
    await make_topic(broker.bootstrap, topic)
    partition = TopicPartition(topic, 0)
    async with producer(broker, topic) as sender, asyncio.timeout(PATIENCE_S):
        async with Consumer(broker.bootstrap, group_id=topic, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=100)
            old = consumer.group_metadata()
        # Its `committed` waits for the markers of a transaction that is committed.
        async with Consumer(
            broker.bootstrap,
            group_id=topic,
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=100)
            with pytest.raises(AbortableTransactionError, match="left its generation"):
                async with sender.transaction():
                    await sender.send_offsets({partition: 7}, old)
            assert (await consumer.committed([partition]))[partition] is None
            async with sender.transaction():
                await sender.send_offsets({partition: 8}, consumer.group_metadata())
            kept = (await consumer.committed([partition]))[partition]
            assert kept is not None
            assert kept.offset == 8
    async with producer(broker, topic) as sender, sender.transaction():
        await sender.send_offsets({partition: 9}, f"{topic}-no-members")


async def test_the_program_of_the_client_page_survives_kills(broker: Broker, topic: str) -> None:
    """The program is killed while it writes and started again. Each number is doubled once."""
    source, target = f"{topic}-numbers", f"{topic}-doubled"
    for name in (source, target):
        await make_topic(broker.bootstrap, name, PARTITIONS)
    async with Producer(broker.bootstrap, linger_ms=5) as feeder:
        for number in range(NUMBERS):
            await feeder.send(source, b"%d" % number, key=b"%d" % number)
    code = program("docs/client.rst", "transactional_id=")
    for old, new in (("127.0.0.1:9092", broker.bootstrap), ("doubler", topic)):
        code = code.replace(old, new)
    code = code.replace('"numbers"', f'"{source}"').replace('"doubled"', f'"{target}"')
    async with (
        Consumer(broker.bootstrap, auto_offset_reset="earliest") as watcher,
        asyncio.timeout(PATIENCE_S),
    ):
        watcher.assign(await watcher.partitions_for(target))
        seen = 0
        for wanted in range(KILL_EVERY, NUMBERS, KILL_EVERY):
            with running(code):
                while seen < wanted:
                    seen += sum(map(len, (await watcher.getmany(timeout_ms=100)).values()))
        with running(code):
            while await backlog(broker, topic, source):
                await watcher.getmany(timeout_ms=100)
    doubled = await values(broker, target, NUMBERS, "read_committed")
    assert sorted(map(int, doubled)) == [2 * number for number in range(NUMBERS)]


async def backlog(broker: Broker, group: str, topic: str) -> int:
    """Return how many records the group has not processed."""
    async with Consumer(broker.bootstrap, group_id=group) as consumer:
        partitions = await consumer.partitions_for(topic)
        ends = await consumer.end_offsets(partitions)
        kept = await consumer.committed(partitions)
    return sum(end - (found.offset if (found := kept[key]) else 0) for key, end in ends.items())


@pytest.mark.process
async def test_transactions_survive_a_killed_broker(new_broker: BrokerMaker) -> None:
    broker = new_broker()
    broker.start()
    await make_topic(broker.bootstrap, "t")
    async with producer(broker, "survivor") as sender:
        async with sender.transaction():
            await sender.send("t", b"1")
        sender.begin_transaction()
        await (await sender.send("t", b"2"))
        broker.kill9()
        last = await sender.send("t", b"3")
        broker.start()
        await sender.commit_transaction()
        assert (await last).offset > 0
    assert await values(broker, "t", 3, "read_committed") == [b"1", b"2", b"3"]
