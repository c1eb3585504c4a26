"""Tests of results that come later, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pybroker.deferred import Deferred
from unit_tests.patience import in_time


def ignored() -> None:
    pass


def refuse(value: int) -> str:
    raise ValueError(value)


def outcome_of(deferred: Deferred[str]) -> object:
    if deferred.cancelled():
        return "cancelled"
    return type(deferred.exception()) if deferred.exception() else deferred.result()


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (lambda deferred: deferred.set_result(2), "2"),
        (lambda deferred: deferred.set_exception(OSError()), OSError),
        (lambda deferred: deferred.cancel(), "cancelled"),
    ],
)
def test_a_callback_gets_the_outcome_at_once(
    finish: Callable[[Deferred[str]], None], expected: object
) -> None:
    seen: list[object] = []
    deferred: Deferred[str] = Deferred[int](ignored).then(str)
    deferred.add_done_callback(lambda done: seen.append(outcome_of(done)))
    assert not deferred.done()
    finish(deferred)
    assert seen == [expected] and deferred.done()


def test_the_error_of_a_step_is_the_outcome() -> None:
    deferred = Deferred[int](ignored).then(refuse)
    deferred.set_result(1)
    with pytest.raises(ValueError, match="1"):
        deferred.result()


def test_a_cancelled_wait_is_stopped_once_and_gets_no_result() -> None:
    stopped: list[None] = []
    deferred: Deferred[int] = Deferred(lambda: stopped.append(None))
    deferred.cancel()
    deferred.cancel()
    deferred.set_result(1)
    deferred.set_exception(OSError())
    assert deferred.cancelled() and len(stopped) == 1


async def test_a_coroutine_awaits_the_result() -> None:
    deferred: Deferred[int] = Deferred(ignored)
    asyncio.get_running_loop().call_soon(deferred.set_result, 3)
    assert await in_time(deferred) == 3
    assert await in_time(deferred) == 3


async def test_a_cancelled_coroutine_stops_the_wait() -> None:
    stopped = asyncio.Event()
    deferred: Deferred[int] = Deferred(stopped.set)

    async def wait() -> int:
        return await deferred

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await in_time(stopped.wait())
    assert deferred.cancelled()
