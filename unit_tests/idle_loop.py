"""An event loop that knows when all its tasks wait, and one whose clock jumps when they do.

Every unit test runs on an `IdleLoop`. A test that has set something going and wants to see how far
it gets by itself awaits `idle()`: the loop has nothing left to run then. Neither of them waits for
threads, other processes or data on its way through a socket: a test waits for those with
`unit_tests.patience.until`, or for an event of theirs.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

Events = list[tuple[selectors.SelectorKey, Any]]


class IdleLoop(asyncio.SelectorEventLoop):
    """asyncio's own, with one question more."""

    def __init__(self) -> None:
        self._idle: list[asyncio.Future[None]] = []
        super().__init__(_Noticing(self))

    def idle(self) -> asyncio.Future[None]:
        """Done as soon as the loop would wait."""
        waiting = self.create_future()
        self._idle.append(waiting)
        return waiting

    def would_wait(self, seconds: float | None, descriptors: int) -> bool:
        """Every task waits, the next timer rings in `seconds`, and so many descriptors are
        watched. Whether there is something to run now."""
        waiting, self._idle = self._idle, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        return bool(waiting)


class JumpingLoop(IdleLoop):
    """Its clock begins at 0 and jumps to the next timer when all tasks wait: minutes pass at once,
    and every run is the same. For tests without sockets, threads and processes."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()

    def time(self) -> float:
        return self.now

    def would_wait(self, seconds: float | None, descriptors: int) -> bool:
        if super().would_wait(seconds, descriptors):
            return True
        if descriptors > 1:  # the first is the loop's own
            raise RuntimeError("time does not jump where sockets are used")
        if seconds is None:
            raise RuntimeError("all tasks wait, and nothing will ever happen")
        self.now += seconds
        return True


class _Noticing(selectors.DefaultSelector):
    """A loop asks it to wait when it has nothing to run."""

    def __init__(self, loop: IdleLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Events:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self._loop.would_wait(timeout, len(self.get_map())):
            return []
        return super().select(timeout)


async def idle() -> None:
    """Return when every task waits: for a timer, a socket, a thread or a future that nobody is
    about to set."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, IdleLoop), "unit_tests/conftest.py makes the loops"
    await loop.idle()


async def loop_turns(count: int) -> None:
    """Let the loop turn that often: for tests that try every moment between two steps of the
    code."""
    for _ in range(count):
        await asyncio.sleep(0)
