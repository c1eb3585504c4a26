"""Starts the components of a broker one after another, and stops them in the reverse order."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object] | None]
"""Starts or stops a component. If the call returns an awaitable, the caller has to await it."""


class Service(Protocol):
    """The interface of a component that can be started and stopped. `start` returns at once."""

    def start(self) -> None: ...

    def stop(self) -> Awaitable[object] | None:
        """Stop the component. May be called without `start`, and more than once."""


class Lifecycle:
    """The started components, each with the call that stops it. The owner must call `stop` even if
    a component fails to start."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def start(self, name: str, start: Step, stop: Step) -> None:
        """Call `start`, which starts the component of that name. Raises the errors of `start`.
        `Lifecycle.stop` calls `stop` even if `start` has failed."""
        self.push(name, stop)
        await _carry_out(start)

    def push(self, name: str, stop: Step) -> None:
        """Add a component that already runs. `stop` is called when the lifecycle stops."""
        self._stack.push_async_callback(_stop, name, stop)

    async def stop(self) -> None:
        """Stop all components in the reverse order of their start, even if the caller is cancelled.
        Failures are logged, not raised. Idempotent."""
        await self._stack.aclose()


async def _stop(name: str, stop: Step) -> None:
    try:
        await _carry_out(stop)
    except Exception as error:
        log.error(
            "component failed to stop, stopping the others component=%s error=%r",
            name,
            error,
            exc_info=error,
        )


async def _carry_out(step: Step) -> None:
    """Call `step`. If `step` returns an awaitable, await it; otherwise do not yield to the event
    loop."""
    done = step()
    if inspect.isawaitable(done):
        await done
