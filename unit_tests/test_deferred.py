"""Tests of results that come later, without a task."""

from __future__ import annotations

import asyncio
import gc
import weakref
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


class Waiter:
    """Has a Deferred that refers back to it, as requests do."""

    def __init__(self) -> None:
        self.deferred: Deferred[str] = Deferred(self.answered)
        self.deferred.then(self.changed)
        self.deferred.add_done_callback(self.answered)

    def changed(self, result: str) -> str:
        return result

    def answered(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "finish",
    [
        lambda deferred: deferred.set_result("done"),
        lambda deferred: deferred.set_exception(ValueError()),
        lambda deferred: deferred.cancel(),
    ],
    ids=["result", "exception", "cancel"],
)
def test_a_finished_wait_is_freed_without_a_garbage_collection(
    finish: Callable[[Deferred[str]], None],
) -> None:
    waiter = Waiter()
    freed = weakref.ref(waiter)
    gc.disable()
    try:
        finish(waiter.deferred)
        del waiter
        assert freed() is None
    finally:
        gc.enable()
