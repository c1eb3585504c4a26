"""Tests of the turns of the event loop between a call and its request, and between a response and
the call that waits for it."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pybroker.client import Delivery, fetcher, sender
from pybroker.client.backoff import wait_for_event
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.fetched import FetchedData, begin_data
from pybroker.client.sender import Sender
from pybroker.wire.api import Api, ApiKey
from pybroker.wire.messages.metadata import MetadataRequest, MetadataResponse
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.held_logs import T0, batch, consumer
from unit_tests.client.test_producer import producer
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import PATIENCE_MS, PATIENCE_S, in_time


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that connections write, as they are written: the names of their APIs."""
    found: list[str] = []
    write = Connection._write

    def noting(self: Connection, api: Api, *rest: Any) -> Any:
        found.append(api.key.name)
        return write(self, api, *rest)

    monkeypatch.setattr(Connection, "_write", noting)
    return found


async def test_record_is_written_in_the_turn_after_its_send(events: list[str]) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=0) as target:
        await target.send_and_wait("t", b"0")
        await loop_turns(3)
        events.clear()
        delivery = target.send_nowait("t", b"1")
        await loop_turns(1)
        assert [each for each in events if each != "METADATA"] == ["PRODUCE"]
        assert (await delivery).offset == 1


async def test_acknowledgement_wakes_the_sender_only_if_a_batch_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[float] = []
    send_ready = Sender._send_ready

    def noting(self: Sender, now: float) -> None:
        runs.append(now)
        send_ready(self, now)

    monkeypatch.setattr(Sender, "_send_ready", noting)
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 2 * PATIENCE_S)
    # Responses with metadata wake the sender, too, and come at any time.
    monkeypatch.setattr(Cluster, "add_listener", lambda *_: None)
    async with FakeBroker({"t": 1}) as broker:
        options = {"linger_ms": 0, "max_in_flight_requests_per_connection": 1}
        async with producer(broker, **options) as target:
            await target.send_and_wait("t", b"0")
            await loop_turns(3)
            runs.clear()
            release = held_produce(broker)
            first = target.send_nowait("t", b"1")
            await loop_turns(2)
            second = target.send_nowait("t", b"2")
            await loop_turns(2)
            assert len(runs) == 2  # for each call
            release.set()
            await in_time(first)
            await in_time(second)
            await loop_turns(3)
            assert len(runs) == 3  # for the first acknowledgement


async def test_acknowledgement_is_known_in_the_turn_in_which_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeBroker({"t": 1}) as broker:
        target = producer(broker, linger_ms=0)
        deliveries: list[Delivery] = []
        known = noted(monkeypatch, ApiKey.PRODUCE, lambda: all(each.done() for each in deliveries))
        async with target:
            deliveries.append(await target.send("t", b"0"))
            await in_time(deliveries[0])
    assert known == [True]


async def test_fetched_records_are_there_in_the_turn_in_which_they_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.partition().append(batch(b"a"))
        target = consumer(broker)
        found = noted(monkeypatch, ApiKey.FETCH, lambda: target._fetcher.reader(T0).has_data())
        async with target:
            target.assign([T0])
            assert await target.getmany(timeout_ms=PATIENCE_MS)
    assert found[0]


def noted(monkeypatch: pytest.MonkeyPatch, key: ApiKey, question: Callable[[], bool]) -> list[bool]:
    """Return the answers to `question` when a connection has taken a response of this API."""
    answers: list[bool] = []
    deliver = Connection._deliver

    def noting(self: Connection, frame: memoryview) -> None:
        api = self._pending[0].api
        deliver(self, frame)
        if api.key is key:
            answers.append(question())

    monkeypatch.setattr(Connection, "_deliver", noting)
    return answers


def held_produce(broker: FakeBroker) -> asyncio.Event:
    """Let the broker carry out Produce requests only after the returned event is set."""
    release, produce = asyncio.Event(), broker.handlers[ApiKey.PRODUCE]

    async def held(request: Message) -> Message:
        await release.wait()
        response = produce(request)
        assert isinstance(response, Message)
        return response

    broker.handlers[ApiKey.PRODUCE] = held
    return release


async def test_consumer_returns_records_before_the_next_fetch_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A response with records wakes the consumer's call before the fetcher, so the call runs
    first. (A response with metadata in the same turn may wake the fetcher earlier.)"""
    steps: list[str] = []

    def noting(*arguments: Any) -> FetchedData:
        steps.append("records")
        return begin_data(*arguments)

    def waking(self: fetcher.Fetcher) -> None:
        if steps[-1:] == ["records"]:
            steps.append("consumer woken" if self.news.is_set() else "fetcher woken")
        wake(self)

    wake = fetcher.Fetcher.wake
    monkeypatch.setattr(fetcher.Fetcher, "wake", waking)
    monkeypatch.setattr(fetcher, "begin_data", noting)
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        log = broker.partition()
        target.assign([T0])
        for _ in range(3):
            log.append(batch(b"a"))
            assert await target.getmany(timeout_ms=PATIENCE_MS)
    assert steps == ["records", "consumer woken"] * 3


async def test_response_that_is_not_awaited_is_dropped() -> None:
    async with FakeBroker({"t": 1}) as broker:
        host, port = broker.address.split(":")
        connection = await Connection.open(host, int(port), client_id="c", timeout_s=PATIENCE_S)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            ask(connection)
            gc.collect()
        assert not found
        assert len((await ask(connection)).brokers) == 1
        await connection.close()


def ask(connection: Connection) -> Awaitable[MetadataResponse]:
    request = MetadataRequest(topics=[])
    return connection.send(ApiKey.METADATA, request, MetadataResponse, timeout_s=PATIENCE_S)


async def test_event_that_is_set_ends_the_wait() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await in_time(wait_for_event(event, None))
    await in_time(wait_for_event(event, 0.0))


@pytest.mark.parametrize("limit_s", [-1.0, 0.0, 0.001])
async def test_wait_for_an_event_ends_after_its_limit(limit_s: float) -> None:
    event = asyncio.Event()
    await in_time(wait_for_event(event, limit_s))
    assert event.is_set()


async def test_cancelled_wait_leaves_no_timer() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, PATIENCE_S))
    await loop_turns(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    timers: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert all(timer.cancelled() for timer in timers)
