"""Tests of partitions without a leader: with leaderless.timeout.ms an early error, otherwise a
wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pybroker.client.admin.admin import Admin
from pybroker.client.errors import ResponseError
from pybroker.client.leaderless import LeaderlessWatch
from pybroker.client.metadata import ClusterView, Node, PartitionInfo, TopicInfo
from pybroker.client.offset_lookup import LATEST
from pybroker.clock import ManualClock
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.wire.messages.metadata import MetadataRequest
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.held_logs import T0, batch, consumer, holding, values
from unit_tests.patience import in_time

PAUSES: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


def view(leader: int = -1) -> ClusterView:
    info = PartitionInfo(T0, ErrorCode.NONE, leader, 3, (1,), (1,), ())
    topic = TopicInfo("t", ErrorCode.NONE, NO_TOPIC_ID, False, {0: info})
    return ClusterView(nodes={1: Node(1, "h", 1)}, topics={"t": topic})


def test_time_and_answers_tell_a_missing_leader_from_an_election() -> None:
    clock = ManualClock()
    watch = LeaderlessWatch(clock)
    others = [T0, TopicPartition("t", 1), TopicPartition("nosuch", 0)]
    for _ in range(5):
        watch.look(view(), others)
    assert watch.leaderless(3_000) == []
    clock.advance(3.0)
    assert watch.leaderless(3_000) == [T0]
    assert watch.leaderless(0) == []
    watch.look(view(leader=1), others)
    assert watch.leaderless(1) == []
    same = view()
    for _ in range(5):
        watch.look(same, others)
        clock.advance(3.0)
    assert watch.leaderless(3_000) == []  # one answer, however old: the client may have stood still
    watch.look(view(leader=7), others)  # an id of which no address is known
    watch.look(view(), others)
    assert watch.leaderless(3_000) == [T0]


@asynccontextmanager
async def leaderless(clock: ManualClock) -> AsyncIterator[FakeBroker]:
    """Yield a broker whose metadata has no leaders. The test's clock advances after a number of
    answers."""
    async with FakeBroker({"t": 1}) as broker:
        broker.without_leader = True

        async def move() -> None:
            await broker.until(lambda: len(broker.requests(MetadataRequest)) > 6)
            clock.advance(4.0)

        mover = asyncio.create_task(move())
        yield broker
        await mover


async def test_a_look_up_fails_soon_where_that_is_asked_for() -> None:
    clock = ManualClock()
    async with (
        leaderless(clock) as broker,
        Admin(broker.address, clock=clock, leaderless_timeout_ms=3_000, **PAUSES) as admin,
    ):
        answers = await in_time(admin.list_offsets({T0: LATEST}))
        error = answers[T0].error
        assert isinstance(error, ResponseError)
        assert error.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert clock.monotonic() == 4.0  # of its limit of 60 s


async def test_a_look_up_waits_otherwise() -> None:
    clock = ManualClock()
    async with leaderless(clock) as broker, Admin(broker.address, clock=clock, **PAUSES) as admin:
        asking = asyncio.create_task(admin.list_offsets({T0: LATEST}))
        await broker.until(lambda: clock.monotonic() == 4.0)
        asked = len(broker.requests(MetadataRequest))
        await broker.until(lambda: len(broker.requests(MetadataRequest)) > asked + 3)
        assert not asking.done()
        broker.without_leader = False
        assert (await in_time(asking))[T0].offset == 0


async def test_a_consumer_fails_soon_where_that_is_asked_for() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.without_leader = True
        async with consumer(broker, leaderless_timeout_ms=20) as target:
            target.assign([T0])
            with pytest.raises(ResponseError, match=r"LEADER_NOT_AVAILABLE: .*\(t-0\)"):
                await in_time(target.getone())


async def test_a_consumer_warns_once_and_reads_on_when_the_leader_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pybroker.client.fetcher.REPORT_AFTER_MS", 20)
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"a"))
        broker.without_leader = True
        async with consumer(broker) as target:
            target.assign([T0])
            reading = asyncio.create_task(values(target, 1))
            await broker.until(lambda: bool(warnings(caplog)))
            asked = len(broker.requests(MetadataRequest))
            await broker.until(lambda: len(broker.requests(MetadataRequest)) > asked + 3)
            broker.without_leader = False
            assert await in_time(reading) == [b"a"]
    assert warnings(caplog) == ["no leader partition=t-0: the consumer waits for a leader"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "no leader" in message]
