"""The end of a tool at a signal, in good order: what is taken is sent, and a group is left. Knows
no tool.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
EXIT_BY_SIGNAL: Final = 128
"""Plus the number of the signal: as a shell says it, and as Java ends."""


class Stop:
    """Set by the first SIGTERM or SIGINT; a second one acts as it would have without us. Use as a
    context manager inside of an event loop."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0

    def __enter__(self) -> Stop:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._set, number)
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    async def wait(self, timeout_s: float) -> None:
        """Returns when it is set, or after so many seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.event.wait()
        except TimeoutError:
            pass

    def _set(self, number: int) -> None:
        self.exit_code = EXIT_BY_SIGNAL + number
        self.event.set()
        self._let_go()

    @staticmethod
    def _let_go() -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)


async def until_signal(work: Coroutine[Any, Any, None]) -> int:
    """Cancel the work when a signal comes, and wait for its end. The exit code. Raises what the
    work raises."""
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
