"""Tests that components stop in the reverse order of their start, also if some of them fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pybroker.broker.lifecycle import Lifecycle
from unit_tests.idle_loop import idle
from unit_tests.patience import in_time

NAMES = ("a", "b", "c")


class Components:
    """A lifecycle with three components that record their steps. The steps of `a` return no
    awaitable."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        self.done: list[str] = []

    async def start(self, failing: str = "") -> None:
        for name in NAMES:
            begin, end = self.step(f"start {name}", failing), self.step(f"stop {name}", failing)
            if name == "a":
                await self.lifecycle.start(name, begin, end)
            else:
                await self.lifecycle.start(name, self.waiting(begin), self.waiting(end))

    def step(self, what: str, failing: str) -> Callable[[], None]:
        def carry_out() -> None:
            self.done.append(what)
            if what == failing:
                raise RuntimeError(what)

        return carry_out

    @staticmethod
    def waiting(step: Callable[[], None]) -> Callable[[], asyncio.Future[None]]:
        async def carry_out() -> None:
            await asyncio.sleep(0)
            step()

        return lambda: asyncio.ensure_future(carry_out())


async def test_stop_order_is_the_reverse_of_the_start_order() -> None:
    components = Components()
    await components.start()
    await components.lifecycle.stop()
    expected = ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    assert components.done == expected


async def test_stop_is_idempotent() -> None:
    components = Components()
    await components.start()
    await components.lifecycle.stop()
    components.done.clear()
    await components.lifecycle.stop()
    assert components.done == []


@pytest.mark.parametrize("name", NAMES)
async def test_failing_stop_is_logged_and_the_others_are_stopped(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    components = Components()
    await components.start(f"stop {name}")
    await components.lifecycle.stop()
    assert components.done[-3:] == ["stop c", "stop b", "stop a"]
    (told,) = caplog.messages
    error = f"RuntimeError('stop {name}')"
    assert told == f"component failed to stop, stopping the others component={name} error={error}"


@pytest.mark.parametrize("name", NAMES)
async def test_failing_start_is_raised_and_what_began_is_stopped(name: str) -> None:
    components = Components()
    with pytest.raises(RuntimeError, match=f"start {name}"):
        await components.start(f"start {name}")
    begun = [each for each in NAMES if each <= name]
    components.done.clear()
    await components.lifecycle.stop()
    assert components.done == [f"stop {each}" for each in reversed(begun)]


async def test_cancelled_stop_stops_the_others_and_is_cancelled() -> None:
    components, hangs = Components(), asyncio.Event()
    await components.start()
    components.lifecycle.push("hangs", hangs.wait)
    stopping = asyncio.ensure_future(components.lifecycle.stop())
    await idle()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(stopping)
    assert components.done[-3:] == ["stop c", "stop b", "stop a"]
