"""The event loops of unit tests, which detect when all their tasks wait.

A test that has started tasks awaits `idle()` until the loop has nothing left to run. `idle` does
not wait for threads, other processes and their sockets: a test waits for them with
`unit_tests.patience.until`, or for an event.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import Any, Final

from pybroker.clock import SystemClock

Events = list[tuple[selectors.SelectorKey, Any]]


TURN_S_MAX: Final = 0.001


class IdleLoop(asyncio.SelectorEventLoop):
    """A loop whose clock advances while all tasks wait, but not past the next timer, and by at most
    TURN_S_MAX in a turn that runs callbacks. So no time limit expires because the machine stalls:
    all ready callbacks run before the clock advances.
    """

    def __init__(self) -> None:
        self.now = self._looked = time.monotonic()
        self._idle: list[asyncio.Future[None]] = []
        super().__init__(_Noticing(self))

    def time(self) -> float:
        return self.now

    def idle(self) -> asyncio.Future[None]:
        """Return a future that is done as soon as the loop would wait."""
        waiting = self.create_future()
        self._idle.append(waiting)
        return waiting

    def told_idle(self) -> bool:
        """Complete the futures of `idle`, when all tasks wait. Return whether there was such a
        future.
        """
        waiting, self._idle = self._idle, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        return bool(waiting)

    def wait(self, selector: selectors.DefaultSelector, seconds: float | None) -> Events:
        """Wait for a descriptor, or until the next timer rings."""
        found = selectors.DefaultSelector.select(selector, seconds)
        self._pass(math.inf if seconds is None else seconds)
        return found

    def turned(self) -> None:
        """Adjust the clock after a turn that has run callbacks."""
        self._pass(TURN_S_MAX)

    def _pass(self, seconds_max: float) -> None:
        before, self._looked = self._looked, time.monotonic()
        self.now += min(self._looked - before, seconds_max)


class JumpingLoop(IdleLoop):
    """A loop whose clock begins at 0 and jumps to the next timer when all tasks wait: minutes pass
    at once, and every run is the same. It is for tests without sockets, threads and processes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def turned(self) -> None:
        """Leave the clock unchanged: a turn takes no time."""

    def wait(self, selector: selectors.DefaultSelector, seconds: float | None) -> Events:
        if len(selector.get_map()) > 1:  # the first is the loop's own
            raise RuntimeError(
                "the jumping clock supports no sockets: mark the test for a real loop"
            )
        if seconds is None:
            raise RuntimeError("deadlock: all tasks wait, and no timer is set")
        self.now += seconds
        return []


class _Noticing(selectors.DefaultSelector):
    """A selector that detects when the loop has nothing to run."""

    def __init__(self, loop: IdleLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Events:
        found = super().select(0)
        self._loop.turned()
        if found or (timeout is not None and timeout <= 0) or self._loop.told_idle():
            return found
        return self._loop.wait(self, timeout)


class LoopClock(SystemClock):
    """The `Clock` of code that runs on such a loop."""

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return super().monotonic()


async def idle() -> None:
    """Return when every task waits for a timer, a socket, a thread, or a future that no ready task
    sets.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, IdleLoop), "unit_tests/conftest.py makes the loops"
    await loop.idle()


async def loop_turns(count: int) -> None:
    """Let the loop turn `count` times, for tests that interrupt the code at every possible turn."""
    for _ in range(count):
        await asyncio.sleep(0)
