"""Tests of groups of our consumers when members and coordinators die: every record is read at
least once, and committed offsets never go back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.apache import ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.conftest import or_skip
from integration_tests.own_members import PARTITIONS, MemberProcess, Members
from pybroker.client import Consumer
from pybroker.client.errors import CommitFailed, FencedInstance
from pybroker.testing.cluster import Cluster
from unit_tests.patience import PATIENCE_S

OVERRIDES = {
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
}


@pytest.fixture(params=["ours", "apache"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Yield a running broker for this test only: ours, and then Apache's."""
    broker: Broker
    if request.param == "ours":
        broker = PybrokerProcess(tmp_path / "ours", overrides=OVERRIDES)
    else:
        broker = or_skip(lambda: ApacheKafka(tmp_path / "apache", overrides=OVERRIDES))
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_other_members_take_over_from_a_killed_member(
    server: Broker, topic: str, strategy: str
) -> None:
    group = Members(server, topic)
    await group.make_topic()
    options = {"partition_assignment_strategy": strategy}
    async with group.member("a", **options), group.member("b", **options):
        await group.until(lambda: group.shares("a", "b"))
        # Only the member that dies has a short session timeout: the others must not be removed
        # before they commit.
        other = MemberProcess(group.bootstrap, topic, session_timeout_ms=3_000, **options)
        try:
            await group.until(lambda: group.shares("a", "b", others=[other]))
            await group.write(20)
            await group.until(lambda: len(group.read | other.read()) == 20 * PARTITIONS)
            other.process.kill9()
            await group.until(lambda: group.shares("a", "b"))
            await group.write(20)
            await group.until(lambda: len(group.read | other.read()) == 40 * PARTITIONS)
        finally:
            other.close()
    assert await group.committed() == dict.fromkeys(range(PARTITIONS), 40)


async def test_a_restarted_coordinator_causes_no_rebalance(server: Broker, topic: str) -> None:
    """The restarted coordinator loads its members: no member has to rejoin, and commits
    continue.
    """
    group = Members(server, topic)
    await group.make_topic()
    options = {"session_timeout_ms": 60_000, "auto_commit_interval_ms": 200}
    async with group.member("a", **options), group.member("b", **options):
        await group.until(lambda: group.shares("a", "b"))
        await group.write(20)
        await group.until(lambda: len(group.read) == 20 * PARTITIONS)
        before = Counter(group.rebalances)
        await asyncio.to_thread(server.kill9)
        await asyncio.to_thread(server.start)
        await group.write(20)
        await group.until(lambda: len(group.read) == 40 * PARTITIONS)
        assert group.rebalances == before
    assert set(group.read.values()) == {1}
    assert await group.committed() == dict.fromkeys(range(PARTITIONS), 40)


@pytest.mark.ours
async def test_another_broker_takes_over_as_coordinator_without_a_rebalance(
    tmp_path: Path, topic: str
) -> None:
    config = {
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 3,
    }
    with Cluster(data=tmp_path, config=config) as cluster:
        group = Members(cluster, topic)
        await group.make_topic()
        options = {"session_timeout_ms": 60_000, "auto_commit_interval_ms": 200}
        async with group.member("a", **options), group.member("b", **options):
            await group.until(lambda: group.shares("a", "b"))
            await group.write(20)
            await group.until(lambda: len(group.read) == 20 * PARTITIONS)
            before = Counter(group.rebalances)
            coordinator = await asyncio.to_thread(cluster.leader, "__consumer_offsets", 0)
            await asyncio.to_thread(cluster.kill, coordinator)
            await group.write(20)
            await group.until(lambda: len(group.read) == 40 * PARTITIONS)
            assert group.rebalances == before
        assert await group.committed() == dict.fromkeys(range(PARTITIONS), 40)


async def test_a_restarted_static_member_causes_no_rebalance(server: Broker, topic: str) -> None:
    group = Members(server, topic)
    await group.make_topic()
    async with group.member("a", group_instance_id="1"):
        async with group.member("b", group_instance_id="2"):
            await group.until(lambda: group.shares("a", "b"))
            had = group.assigned["b"]
            before = group.rebalances["a"]
        async with group.member("b", group_instance_id="2"):
            await group.write(20)
            await group.until(lambda: len(group.read) == 20 * PARTITIONS)
            assert group.assigned["b"] == had
            assert group.rebalances["a"] == before


async def test_two_processes_with_one_instance_id_exclude_each_other(
    server: Broker, topic: str
) -> None:
    group = Members(server, topic)
    await group.make_topic()
    async with group.consumer(group_instance_id="1") as first:
        first.subscribe([topic])
        async with asyncio.timeout(PATIENCE_S):
            while not first.assignment():
                await first.getmany(timeout_ms=100)
        async with group.member("b", group_instance_id="1"):
            await group.until(lambda: group.shares("b"))
            with pytest.raises(FencedInstance, match=r"set a different group\.instance\.id"):
                async with asyncio.timeout(PATIENCE_S):
                    await read_on(first)


async def test_a_slow_member_is_removed_and_cannot_commit(server: Broker, topic: str) -> None:
    """The partitions of the slow member move to the other member, and its late commit is
    rejected.
    """
    group = Members(server, topic)
    await group.make_topic()
    await group.write(1)
    async with group.consumer(max_poll_interval_ms=1_000, enable_auto_commit=False) as slow:
        slow.subscribe([topic])
        async with asyncio.timeout(PATIENCE_S):
            while not await slow.getmany(timeout_ms=100):
                pass
        async with group.member("b"):
            await group.until(lambda: group.shares("b"))
            with pytest.raises(CommitFailed, match=r"max\.poll\.interval\.ms"):
                await slow.commit()
            await group.until(lambda: len(group.read) == PARTITIONS)
            reading = asyncio.create_task(read_on(slow))
            await group.until(lambda: len(group.assigned["b"]) == PARTITIONS // 2)
            reading.cancel()
            await asyncio.wait([reading])


async def read_on(consumer: Consumer) -> None:
    while True:
        await consumer.getmany(timeout_ms=100)
