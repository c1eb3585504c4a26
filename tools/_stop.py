"""Ends a tool cleanly at SIGTERM or SIGINT: accepted records are sent, and the tool leaves its
group."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
EXIT_BY_SIGNAL: Final = 128
"""The exit code after a signal is 128 plus the signal's number, as in a shell and in Java."""


class Stop:
    """A context manager on an event loop: the first SIGTERM or SIGINT inside the `with` block sets
    `event`. A second signal has its default effect."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0

    def __enter__(self) -> Stop:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._set, number)
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_handlers()

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until a signal arrives, at most `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.event.wait()
        except TimeoutError:
            pass

    def _set(self, number: int) -> None:
        self.exit_code = EXIT_BY_SIGNAL + number
        self.event.set()
        self._remove_handlers()

    @staticmethod
    def _remove_handlers() -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)


async def until_signal(work: Coroutine[Any, Any, None]) -> int:
    """Run `work` until it ends. If a signal arrives, cancel `work`. Return the exit code: 0, or 128
    plus the number of the signal. An exception of `work` propagates."""
    with Stop() as stop:
        task = asyncio.ensure_future(work)
        waiter = asyncio.ensure_future(stop.event.wait())
        try:
            await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        finally:
            waiter.cancel()
    return stop.exit_code
