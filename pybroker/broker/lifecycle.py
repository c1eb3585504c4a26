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
    """A component whose `start` returns at once, without a wait."""

    def start(self) -> None: ...

    def stop(self) -> Awaitable[object] | None:
        """Stop the component. Idempotent, also without `start`."""


class Lifecycle:
    """The components that have been started, each with the call that stops it. The owner always
    calls `stop`, also after a start that failed half-way."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def start(self, name: str, start: Step, stop: Step) -> None:
        """Call `start`, which starts the component of that name. `stop` is called when the
        lifecycle stops, even if `start` fails. Raise the errors of `start`."""
        self.push(name, stop)
        await _carry_out(start)

    def push(self, name: str, stop: Step) -> None:
        """Add a component that runs already, or that starts by itself at its first use. `stop` is
        called when the lifecycle stops."""
        self._stack.push_async_callback(_stop, name, stop)

    async def stop(self) -> None:
        """Stop the components in the reverse order of their start. If a component fails to stop,
        the failure is logged and the remaining components are stopped. They are also stopped if the
        caller is cancelled. Idempotent."""
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
    """Call `step`, and await its result if that is an awaitable. Otherwise do not yield to the
    event loop."""
    done = step()
    if inspect.isawaitable(done):
        await done
