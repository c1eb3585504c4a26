"""The time limits of all tests, and waits with these limits.

A limit ends a test that hangs; it never decides whether the code is fast enough. So the limits are
far above the ten seconds for which a machine may stall, and a passing test never comes near them.
Speed is measured in `benchmarks/`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 120.0
"""The limit in seconds for an event that must happen."""

PATIENCE_MS: Final = 120_000
"""The limit in ms for an event that must happen, for requests and clients with timeouts in ms."""

WORK_S: Final = 600.0
"""The limit in seconds for a program that works for minutes: a compiler, an installation, a Spark
job.
"""

ATTEMPT_S: Final = 5.0
"""The limit in seconds for one of several attempts, after which the next attempt begins."""

MOMENT_S: Final = 0.05
"""The time in seconds to wait for an event that must not happen. On a busy machine the event may
happen later, and the test then misses it; it cannot fail without a cause.
"""

_POLL_S: Final = 0.02


class WaitFailed(AssertionError):
    """An event did not happen in time; the message names it."""


async def in_time(awaited: Awaitable[T]) -> T:
    """Return the result of `awaited`.

    Raises WaitFailed if `awaited` does not end within PATIENCE_S.
    """
    try:
        return await asyncio.wait_for(awaited, PATIENCE_S)
    except TimeoutError as error:
        raise WaitFailed(f"not within {PATIENCE_S} s: {awaited!r}") from error


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the event loop run until `condition()` is true.

    Raises WaitFailed if the condition is not true within PATIENCE_S; the message has `what`, or the
    source of the condition.
    """
    deadline = time.monotonic() + PATIENCE_S
    turns = 0
    while not condition():
        if time.monotonic() > deadline:
            raise WaitFailed(f"not within {PATIENCE_S} s: {what or _text(condition)}")
        turns += 1
        # A condition may depend on threads or sockets: leave them the processor.
        await asyncio.sleep(0 if turns < 1000 else _POLL_S / 10)


def wait_until(condition: Callable[[], object], *, what: str) -> None:
    """Poll until `condition()` is true, for conditions without an event (ports, files, processes).

    Raises WaitFailed if the condition is not true within PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise WaitFailed(f"not within {PATIENCE_S} s: {what}")
        pause.wait(_POLL_S)


def _text(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except OSError:
        return repr(condition)
