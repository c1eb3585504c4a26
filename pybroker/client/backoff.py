"""The backoff between retries, and the deadline of an operation."""

from __future__ import annotations

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
