"""Components that start one after another and stop in the reverse order."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object] | None]
"""Starts or stops a component. If the call returns an awaitable, the step ends when it is
awaited."""


class Service(Protocol):
    """A component whose `start` returns at once."""

    def start(self) -> None: ...

    def stop(self) -> Awaitable[object] | None:
        """Stop the component. Idempotent, also without `start`."""


class Lifecycle:
    """The started components and the steps that stop them. The owner always calls `stop`, also
    after a start that failed half-way."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def start(self, name: str, start: Step, stop: Step) -> None:
        """Start a component. The component is stopped later even if its start fails half-way. Raise
        the errors of `start`."""
        self.push(name, stop)
        await _carry_out(start)

    def push(self, name: str, stop: Step) -> None:
        """Add a component that runs already, or that starts at its first use."""
        self._stack.push_async_callback(_stop, name, stop)

    async def stop(self) -> None:
        """Stop the components in the reverse order of their start. A failure is logged, and the
        other components are stopped all the same, also if the caller is cancelled. Idempotent."""
        await self._stack.aclose()


async def _stop(name: str, stop: Step) -> None:
    try:
        await _carry_out(stop)
    except Exception as error:
        log.error("not stopped component=%s error=%r", name, error, exc_info=error)


async def _carry_out(step: Step) -> None:
    """Carry out a step. A step that does not wait does not yield to the event loop."""
    done = step()
    if inspect.isawaitable(done):
        await done
