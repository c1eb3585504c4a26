"""Tests that the metering counts and times requests around the dispatcher, and does not change
them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

import pytest

from pybroker.clock import ManualClock
from pybroker.deferred import Deferred
from pybroker.errors import MalformedInput
from pybroker.handlers.dispatch import Answer
from pybroker.handlers.metering import Metering
from pybroker.metrics import Metrics
from pybroker.server.connection import Peer
from pybroker.wire.api import ApiKey

PEER: Final = Peer("PLAINTEXT", "host", 1)
ANSWER: Answer = [b"answer"]


def frame(key: int) -> memoryview:
    return memoryview(bytes([0, key, 0, 7]))


class Clients:
    """Return a handler whose requests take `seconds` each."""

    def __init__(self, seconds: float = 0.0, answer: Answer = ANSWER) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self._seconds = seconds
        self._answer = answer
        self.metering = Metering(self._dispatch, self.metrics.requests, self.clock)

    def _dispatch(self, frame: memoryview, listener: str, host: str) -> Answer:
        self.clock.advance(self._seconds)
        return self._answer

    def ask(self, key: int, times: int = 1) -> list[Answer | Awaitable[Answer]]:
        return [self.metering.answer(frame(key), PEER) for _ in range(times)]


@pytest.mark.parametrize("answer", [ANSWER, None])
@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.METADATA])
def test_answers_are_unchanged_and_counted(key: ApiKey, answer: Answer) -> None:
    clients = Clients(answer=answer)
    assert clients.ask(key, 5) == [answer] * 5
    assert clients.metrics.requests[key].count == 5
    assert sum(meter.count for meter in clients.metrics.requests) == 5


def test_rare_requests_are_all_timed() -> None:
    clients = Clients(seconds=0.5)
    clients.ask(ApiKey.METADATA, 5)
    times = clients.metrics.requests[ApiKey.METADATA].times
    assert times.count == 5 and times.total_s == pytest.approx(2.5)


def test_frequent_requests_are_sampled_and_weighted() -> None:
    clients = Clients(seconds=0.5)
    clients.ask(ApiKey.PRODUCE, 64)
    times = clients.metrics.requests[ApiKey.PRODUCE].times
    assert times.count == 64 and times.total_s == pytest.approx(32.0)


async def test_a_request_that_waits_is_timed_to_its_answer() -> None:
    clock, metrics = ManualClock(), Metrics()
    committed = asyncio.get_running_loop().create_future()

    async def later() -> Answer:
        await committed
        return ANSWER

    metering = Metering(lambda *_: later(), metrics.requests, clock)
    answer = metering.answer(frame(ApiKey.PRODUCE), PEER)
    assert isinstance(answer, Awaitable)
    waiting = asyncio.ensure_future(answer)
    await asyncio.sleep(0)
    clock.advance(3)
    committed.set_result(None)
    assert await waiting == ANSWER
    times = metrics.requests[ApiKey.PRODUCE].times
    assert (times.count, times.total_s) == (1, 3)


async def test_a_deferred_answer_is_timed_and_passed_on_without_a_task() -> None:
    clock, metrics = ManualClock(), Metrics()
    committed: Deferred[Answer] = Deferred(lambda: None)
    metering = Metering(lambda *_: committed, metrics.requests, clock)
    assert metering.answer(frame(ApiKey.FETCH), PEER) is committed
    clock.advance(3)
    committed.set_result(ANSWER)
    times = metrics.requests[ApiKey.FETCH].times
    assert (times.count, times.total_s) == (1, 3)


@pytest.mark.parametrize("sent", [b"", b"\0", b"\xff\xff"])
def test_a_malformed_frame_is_rejected_and_not_counted(sent: bytes) -> None:
    metrics = Metrics()

    def refuse(*_: object) -> Answer:
        raise MalformedInput("no header")

    metering = Metering(refuse, metrics.requests, ManualClock())
    with pytest.raises(MalformedInput):
        metering.answer(memoryview(sent), PEER)
    assert not any(meter.count for meter in metrics.requests)
