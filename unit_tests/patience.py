"""How long tests wait: the one place that holds their limits.

A limit ends a test that hangs; it never decides whether the code is fast enough. So the
limits are far above the ten seconds that a machine may stand still, and a test that passes never
comes near them. How fast something is belongs to `benchmarks/`.
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
"""For an event that must happen."""

PATIENCE_MS: Final = 120_000
"""The same, for requests and clients that count in milliseconds."""

WORK_S: Final = 600.0
"""For a program that works for minutes: a compiler, an installation, a Spark job."""

ATTEMPT_S: Final = 5.0
"""For one attempt of several: when this time is over, the next attempt begins."""

MOMENT_S: Final = 0.05
"""For an event that must not happen. A busy machine can only make such a test less sharp, because
the event may happen after the test has looked. It cannot make the test fail."""

_POLL_S: Final = 0.02


class WaitFailed(AssertionError):
    """An event did not happen in time; the message names it."""


async def in_time(awaited: Awaitable[T]) -> T:
    """The result of `awaited`.

    Raises WaitFailed if it does not end in time.
    """
    try:
        return await asyncio.wait_for(awaited, PATIENCE_S)
    except TimeoutError as error:
        raise WaitFailed(f"not within {PATIENCE_S} s: {awaited!r}") from error


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the loop turn until `condition()` is true.

    Raises WaitFailed when it is not true in time; the message says `what`, or shows the condition.
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
    """Return as soon as `condition()` is true, for things that send no event (ports, files, other
    programs' processes).

    Raises WaitFailed when it is not true in time.
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
