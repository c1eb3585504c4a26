"""Tests of a consumer's fetch sessions: the partitions that a request adds and forgets, and new
sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest

from pybroker.client.consumer import Consumer
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.builder import BatchBuilder
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchRequest, FetchResponse
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import LOSE_ANSWER, LOSE_REQUEST, FakeBroker
from unit_tests.patience import PATIENCE_S

QUICK: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
    "fetch_max_wait_ms": 10,
}
PARTITIONS = [TopicPartition("t", number) for number in range(3)]


def with_sessions() -> FakeBroker:
    broker = FakeBroker({"t": len(PARTITIONS)})
    broker.sessions = {}
    return broker


def consumer(broker: FakeBroker) -> Consumer:
    return Consumer(broker.address, **QUICK)


def append(broker: FakeBroker, value: bytes, partition: int = 0) -> None:
    builder = BatchBuilder()
    builder.append(0, None, value, ())
    broker.partition("t", partition).append(builder.build())


def fetches(broker: FakeBroker) -> list[FetchRequest]:
    return [request for request in broker.seen if isinstance(request, FetchRequest)]


def named(request: FetchRequest) -> list[int]:
    return [part.partition for topic in request.topics for part in topic.partitions]


async def incremental(broker: FakeBroker, since: int = 0) -> None:
    """Wait for a request that names no partition."""
    await broker.until(
        lambda: any(
            request.session_epoch > 0 and not named(request) for request in fetches(broker)[since:]
        )
    )


async def test_only_changes_are_requested_and_everything_is_read() -> None:
    async with with_sessions() as broker, consumer(broker) as target:
        target.assign(PARTITIONS)
        await incremental(broker)
        first = fetches(broker)[0]
        assert (first.session_id, first.session_epoch) == (0, 0)
        for value in (b"a", b"b"):
            append(broker, value, partition=1)
            assert (await target.getone()).value == value
        append(broker, b"c", partition=2)
        assert (await target.getone()).value == b"c"
        later = fetches(broker)[1:]
        assert {request.session_id for request in later} == {1}
        assert [request.session_epoch for request in later] == list(range(1, len(later) + 1))
        assert [] in map(named, later) and [1] in map(named, later)


async def test_a_session_that_the_broker_forgot_begins_anew_without_a_pause() -> None:
    async with with_sessions() as broker, consumer(broker) as target:
        target.assign(PARTITIONS)
        await incremental(broker)
        assert broker.sessions is not None
        broker.sessions.clear()
        append(broker, b"a")
        assert (await target.getone()).value == b"a"
        fulls = [request for request in fetches(broker) if not request.session_epoch]
        assert [sorted(named(request)) for request in fulls] == [[0, 1, 2]] * 2
        assert all(reader.failures == 0 for reader in target._fetcher.readers.values())


async def test_an_answer_that_never_came_ends_the_session() -> None:
    async with with_sessions() as broker, consumer(broker) as target:
        target.assign(PARTITIONS)
        await incremental(broker)
        broker.will(ApiKey.FETCH, LOSE_ANSWER, LOSE_REQUEST)
        append(broker, b"a")
        assert (await target.getone()).value == b"a"
        await broker.until(lambda: list(broker.sessions or ()) == [1])
        fulls = [request for request in fetches(broker) if not request.session_epoch]
        assert {request.session_id for request in fulls} == {0, 1}, "the old one is named"


async def test_a_broker_that_forgets_at_once_is_asked_again_after_a_pause() -> None:
    async with with_sessions() as broker, consumer(broker) as target:
        failures: list[int] = []
        behave = broker.handlers[ApiKey.FETCH]

        def forget(request: Message) -> Message | Awaitable[Message]:
            failures.append(sum(reader.failures for reader in target._fetcher.readers.values()))
            if len(failures) > 3:
                return behave(request)
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

        broker.handlers[ApiKey.FETCH] = forget
        append(broker, b"a")
        target.assign(PARTITIONS)
        assert (await target.getone()).value == b"a"
        assert failures[0] == 0
        assert all(earlier < later for earlier, later in pairwise(failures[:4]))


async def test_a_paused_partition_is_forgotten_and_comes_back() -> None:
    async with with_sessions() as broker, consumer(broker) as target:
        target.assign(PARTITIONS)
        await incremental(broker)
        target.pause(PARTITIONS[0])
        await broker.until(
            lambda: any(request.forgotten_topics_data for request in fetches(broker))
        )
        assert broker.sessions is not None
        assert PARTITIONS[0] not in broker.sessions[1]
        append(broker, b"a")
        target.resume(PARTITIONS[0])
        assert (await target.getone()).value == b"a"
        assert list(broker.sessions) == [1]


async def test_a_consumer_that_is_closed_ends_its_session() -> None:
    async with with_sessions() as broker:
        async with consumer(broker) as target:
            target.assign(PARTITIONS)
            await incremental(broker)
            assert list(broker.sessions or ()) == [1]
        assert broker.sessions == {}


async def test_a_cancelled_close_that_waits_for_a_broker_has_closed() -> None:
    """All other tasks that wait for the close also end."""
    async with with_sessions() as broker:
        tasks, is_asked = asyncio.all_tasks(), asyncio.Event()
        target = consumer(broker)
        await target.start()
        target.assign(PARTITIONS)
        append(broker, b"a")
        assert await target.getone()
        behaving = broker.handlers[ApiKey.FETCH]

        async def silent(request: Message) -> Message:
            assert isinstance(request, FetchRequest)
            if request.session_epoch == -1:
                is_asked.set()
                await asyncio.Event().wait()
            found = behaving(request)
            return found if isinstance(found, Message) else await found

        broker.handlers[ApiKey.FETCH] = silent
        closing = asyncio.ensure_future(target.close())
        async with asyncio.timeout(PATIENCE_S):
            await is_asked.wait()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await target.close()
        names = {task.get_name() for task in asyncio.all_tasks() - tasks}
        assert not names & {"consumer fetcher", "metadata"}
