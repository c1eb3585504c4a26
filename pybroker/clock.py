"""The implementations of `Clock`: the machine's clock, and a clock for tests."""

from __future__ import annotations

import time


class SystemClock:
    """Reads the machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    wall_ns = staticmethod(time.time_ns)
    """Returns the nanoseconds since 1970. A call is faster than one of `wall_ms`."""
    monotonic = staticmethod(time.monotonic)

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class ManualClock:
    """A `Clock` for tests: its time changes only when the test advances it."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        self._wall_ms += int(seconds * 1000)

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._seconds

    def boottime(self) -> float:
        return self._seconds
