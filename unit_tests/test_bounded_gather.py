"""Tests of the bounded gather of many calls: order, limit, errors, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.bounded_gather import bounded_gather
from unit_tests.idle_loop import idle
from unit_tests.patience import in_time


class Calls:
    """Calls that the test completes one by one."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.answers: dict[int, asyncio.Future[int]] = {}

    async def call(self, number: int) -> int:
        self.begun.append(number)
        self.answers[number] = asyncio.get_running_loop().create_future()
        try:
            return await self.answers[number]
        finally:
            self.ended.append(number)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
async def test_results_have_the_order_of_the_items(count: int) -> None:
    async def later(number: int) -> int:
        await asyncio.sleep((count - number) / 1000)
        return 10 * number

    assert await bounded_gather(later, range(count)) == [10 * n for n in range(count)]


async def test_no_more_calls_run_at_once_than_allowed() -> None:
    calls = Calls()
    gathering = asyncio.ensure_future(bounded_gather(calls.call, range(5), 2))
    await idle()
    assert calls.begun == [0, 1]
    calls.answers[1].set_result(1)
    await idle()
    assert calls.begun == [0, 1, 2]
    for number in (0, 2, 3, 4):
        calls.answers[number].set_result(number)
        await idle()
    assert await in_time(gathering) == [0, 1, 2, 3, 4]


async def test_an_error_is_raised_after_the_running_calls_have_ended() -> None:
    calls = Calls()
    gathering = asyncio.ensure_future(bounded_gather(calls.call, range(5), 2))
    await idle()
    calls.answers[0].set_exception(ZeroDivisionError())
    await idle()
    assert not gathering.done()
    assert calls.begun == [0, 1], "no new call is started"
    calls.answers[1].set_result(1)
    with pytest.raises(ZeroDivisionError):
        await in_time(gathering)


@pytest.mark.parametrize("count", [1, 3])
async def test_cancellation_reaches_the_calls(count: int) -> None:
    calls = Calls()
    gathering = asyncio.ensure_future(bounded_gather(calls.call, range(count)))
    await idle()
    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(gathering)
    assert sorted(calls.ended) == list(range(count))
