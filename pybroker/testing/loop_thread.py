"""An event loop in its own thread, for blocking code that calls coroutines.

The thread must run until `close`: when the thread ends, Linux kills the child processes that the
thread started (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from pybroker.background import cancel_and_wait

T = TypeVar("T")
P = ParamSpec("P")

_CLOSE_SECONDS_MAX: Final = 10.0


class LoopThread:
    """An event loop in its own thread. Only other threads may call its methods."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread's event loop and return its result. An interrupt of the
        caller, such as Ctrl-C, cancels the coroutine."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the event loop's thread and return its result."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called())

    def close(self) -> None:
        """Cancel all tasks of the event loop and end the thread. Idempotent."""
        if self.closed:
            return
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS_MAX)
        self._loop.close()


async def _cancel_others() -> None:
    await cancel_and_wait(*asyncio.all_tasks())
