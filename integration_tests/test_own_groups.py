"""Tests of our consumers in groups with each other, and with members of other clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration_tests.apache import ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.conftest import or_skip
from integration_tests.outside_members import MAKERS
from integration_tests.own_members import PARTITIONS, Members
from pybroker.client import (
    Admin,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from unit_tests.patience import PATIENCE_S, wait_until

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]
OVERRIDES = {
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
}


@pytest.fixture(scope="module", params=["ours", "apache"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """Yield a running broker: ours, and then Apache's."""
    folder = tmp_path_factory.mktemp("groups")
    broker: Broker
    if request.param == "ours":
        broker = PybrokerProcess(folder / "ours", overrides=OVERRIDES)
    else:
        broker = or_skip(lambda: ApacheKafka(folder, overrides=OVERRIDES, heap_mib=512))
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_members_come_and_go_and_every_record_is_read_once(
    server: Broker, topic: str, strategy: str
) -> None:
    """No member fails, and all members release their partitions cleanly, so no record is read
    twice.
    """
    group = Members(server, topic)
    await group.make_topic()
    options = {"partition_assignment_strategy": strategy}
    async with contextlib.AsyncExitStack() as stay:
        await stay.enter_async_context(group.member("a", **options))
        await group.until(lambda: group.shares("a"))
        await group.write(20)
        async with group.member("b", **options):
            await group.until(lambda: group.shares("a", "b"))
            await group.write(20)
            await stay.enter_async_context(group.member("c", **options))
            await group.until(lambda: group.shares("a", "b", "c"))
            await group.write(20)
        await group.until(lambda: group.shares("a", "c"))
        await group.write(20)
        await group.until(lambda: len(group.read) == 80 * PARTITIONS)
    assert set(group.read.values()) == {1}
    assert await group.committed() == dict.fromkeys(range(PARTITIONS), 80)


async def test_offsets_are_committed_with_metadata_and_reads_continue_there(
    server: Broker, topic: str
) -> None:
    group = Members(server, topic)
    await group.make_topic()
    await group.write(10)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with group.consumer(enable_auto_commit=False) as consumer:
        consumer.assign([first, second])
        await consumer.commit({first: OffsetAndMetadata(4, "half"), second: 9})
        found = await consumer.committed([first, second, TopicPartition(topic, 2)])
        assert found == {
            first: OffsetAndMetadata(4, "half"),
            second: OffsetAndMetadata(9),
            TopicPartition(topic, 2): None,
        }
    async with group.consumer(enable_auto_commit=False) as consumer:
        consumer.assign([first])
        record = await consumer.getone()
        assert (record.offset, consumer.lag(first)) == (4, 5)


async def test_a_pattern_subscribes_to_topics_that_are_created_later(
    server: Broker, topic: str
) -> None:
    """Two members read all matching topics and no other topics, each record once."""
    first, later, other = (f"{topic}-{name}" for name in ("first", "later", "other"))
    bootstrap, options = server.bootstrap, {"metadata_max_age_ms": 500}
    read: Counter[tuple[str, int, int]] = Counter()
    news = asyncio.Condition()

    async def write(*names: str) -> None:
        async with Producer(bootstrap) as producer:
            for name in names:
                for number in range(2 * PARTITIONS):
                    await producer.send(name, b"x", partition=number % PARTITIONS)

    async def follow(member: Consumer) -> None:
        member.subscribe(pattern=f"{topic}-(first|later)")
        while True:
            for records in (await member.getmany(timeout_ms=50)).values():
                read.update((record.topic, record.partition, record.offset) for record in records)
            async with news:
                news.notify_all()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), news:
            await news.wait_for(condition)

    def share(*names: str) -> bool:
        held = [Counter(tp.topic for tp in member.assignment()) for member in members]
        return all(each == dict.fromkeys(names, PARTITIONS // 2) for each in held)

    async with contextlib.AsyncExitStack() as stay:
        admin = await stay.enter_async_context(Admin(bootstrap))
        members = [
            await stay.enter_async_context(Members(server, topic).consumer(**options))
            for _ in range(2)
        ]
        for made in await admin.create_topics([NewTopic(n, PARTITIONS) for n in (first, other)]):
            made.check()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(follow(member)) for member in members]
            await write(first, other)
            await until(lambda: share(first) and len(read) == 2 * PARTITIONS)
            for made in await admin.create_topics([NewTopic(later, PARTITIONS)]):
                made.check()
            await write(later, first)
            await until(lambda: share(first, later) and len(read) == 6 * PARTITIONS)
            for task in running:
                task.cancel()
    assert set(read.values()) == {1}
    assert {name for name, _, _ in read} == {first, later}


MIXED = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("confluent-kafka", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "cooperative-sticky"),
    ("java", "range"),
    ("java", "sticky"),
    ("java", "cooperative-sticky"),
]


@pytest.mark.parametrize("ours_leads", [True, False], ids=["ours-leads", "theirs-leads"])
@pytest.mark.parametrize(("client", "strategy"), MIXED)
async def test_a_member_of_another_client_is_in_the_same_group(
    server: Broker,
    topic: str,
    tmp_path: Path,
    jars: str,
    client: str,
    strategy: str,
    ours_leads: bool,
) -> None:
    """The first member becomes the group leader and assigns the partitions. The members share the
    partitions, each record is read by the owner of its partition, and our members take over when
    the other client leaves.
    """
    group = Members(server, topic)
    await group.make_topic()
    options = {"partition_assignment_strategy": strategy}
    async with contextlib.AsyncExitStack() as stay:
        if ours_leads:
            await stay.enter_async_context(group.member("a", **options))
            await group.until(lambda: group.shares("a"))
        other = MAKERS[client](group.bootstrap, topic, strategy, tmp_path)
        stay.callback(other.close)
        if not ours_leads:
            await asyncio.to_thread(
                wait_until, lambda: other.assigned() == [*range(PARTITIONS)], what="theirs has all"
            )
            await stay.enter_async_context(group.member("a", **options))
        await stay.enter_async_context(group.member("b", **options))
        await group.until(lambda: group.shares("a", "b", others=[other]))
        await group.write(20)
        await group.until(lambda: len(group.read | other.read()) == 20 * PARTITIONS)
        assert {partition for partition, _ in other.read()} == set(other.assigned())
        await asyncio.to_thread(other.close)
        await group.until(lambda: group.shares("a", "b"))
        await group.write(20)
        await group.until(lambda: len(group.read | other.read()) == 40 * PARTITIONS)
    assert set((group.read + other.read()).values()) == {1}
    assert await group.committed() == dict.fromkeys(range(PARTITIONS), 40)
