"""The backoff between retries, the deadline of an operation, and waits with a limit."""

from __future__ import annotations

import asyncio

from pybroker.ports import Clock, Rng

JITTER = 0.2
_STEPS_MAX = 30


def backoff_s(failures: int, *, first_ms: int, max_ms: int, rng: Rng) -> float:
    """Return the seconds to wait after `failures` (1 or more) consecutive failures: doubled from
    `first_ms` up to `max_ms`, with a jitter of ±20 % (KIP-580)."""
    steps = min(max(failures - 1, 0), _STEPS_MAX)
    base_ms = min(first_ms << steps, max_ms)
    spread = 1 - JITTER + 2 * JITTER * rng.randrange(1_000) / 1_000
    return base_ms * spread / 1_000


class Deadline:
    """The end time of an operation, on the monotonic clock."""

    __slots__ = ("_clock", "_end")

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self._clock = clock
        self._end = clock.monotonic() + limit_ms / 1_000

    def remaining_s(self) -> float:
        """Return the seconds until the deadline; 0.0 after it."""
        return max(0.0, self._end - self._clock.monotonic())

    def remaining_ms(self) -> int:
        return int(self.remaining_s() * 1_000)

    @property
    def passed(self) -> bool:
        return self._clock.monotonic() >= self._end


async def wait_for_event(event: asyncio.Event, limit_s: float | None) -> None:
    """Wait until the event is set. After `limit_s` seconds (None: never), set the event and
    return."""
    timer = None
    if limit_s is not None and not event.is_set():
        timer = asyncio.get_running_loop().call_later(limit_s, event.set)
    try:
        await event.wait()
    finally:
        if timer is not None:
            timer.cancel()
