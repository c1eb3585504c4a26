"""What starts one after the other and stops in the reverse order."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object] | None]
"""Begins or ends a component, at once or when it is awaited."""


class Service(Protocol):
    """A component whose start does not wait."""

    def start(self) -> None: ...

    def stop(self) -> Awaitable[object] | None:
        """Idempotent, also without `start`."""


class Lifecycle:
    """Knows how to stop all that was started. `stop` is to be called in any case, also after a
    start that failed half-way."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def start(self, name: str, start: Step, stop: Step) -> None:
        """Start a component. One that fails half-way is stopped, too, so `stop` must be possible
        without `start`. Raises what `start` raises."""
        self.push(name, stop)
        await _carry_out(start)

    def push(self, name: str, stop: Step) -> None:
        """Add a component that has started already, or that its first use starts."""
        self._stack.push_async_callback(_stop, name, stop)

    async def stop(self) -> None:
        """Stop the components, the last first. One that fails is logged, and the others are stopped
        all the same; so they are when the caller is cancelled meanwhile. Idempotent."""
        await self._stack.aclose()


async def _stop(name: str, stop: Step) -> None:
    try:
        await _carry_out(stop)
    except Exception as error:
        log.error("not stopped component=%s error=%r", name, error, exc_info=error)


async def _carry_out(step: Step) -> None:
    """A step that is done at once takes no turn of the event loop."""
    done = step()
    if inspect.isawaitable(done):
        await done
