"""The load and the delay of the event loop, and the recent distribution of durations.

There are no request handler threads. So the idle share that Kafka measures for them is measured
for the event loop's thread: the share of time in which it used no CPU.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pybroker.metrics import TimeMeter

TICK_S: Final = 0.2
"""The interval of the timer that measures the loop's delay. A stall of S seconds is seen with
probability S / TICK_S, a stall above TICK_S always."""
_SAMPLE_TICKS: Final = 25
_SAMPLES: Final = 12
"""Twelve samples, 5 s apart: "recent" means the last minute."""

Meters = Callable[[], Iterable[tuple[str, TimeMeter]]]
Buckets = Mapping[int, int]


class LoopWatch:
    """Measures the event loop that it runs on, between `start` and `stop`."""

    def __init__(self, meters: Meters) -> None:
        """`meters` gives each meter whose recent durations are kept, under a unique name."""
        self.lag = TimeMeter()
        self._meters = meters
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._ticks = 0
        self._busy: deque[tuple[float, float]] = deque(maxlen=_SAMPLES + 1)
        self._past: deque[dict[str, dict[int, int]]] = deque(maxlen=_SAMPLES + 1)

    def start(self) -> None:
        self._sample()
        self._next()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def idle_share(self) -> float:
        """The share of the last minute, 0 to 1, in which the loop's thread used no CPU. Must be
        called on the loop."""
        began, used = self._busy[0]
        elapsed = time.monotonic() - began
        if elapsed <= 0:
            return 1.0
        return min(max(1.0 - (time.thread_time() - used) / elapsed, 0.0), 1.0)

    def recent(self, name: str, meter: TimeMeter) -> Buckets:
        """The durations that the meter of that name counted in the last minute."""
        before = self._past[0].get(name, {})
        counted = {
            bucket: count - before.get(bucket, 0) for bucket, count in meter.buckets.copy().items()
        }
        return {bucket: count for bucket, count in counted.items() if count > 0}

    def _next(self) -> None:
        # Not the loop's own time: some loops read the clock once a turn only.
        self._due = time.monotonic() + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self.lag.add(max(time.monotonic() - self._due, 0.0))
        self._ticks += 1
        if self._ticks % _SAMPLE_TICKS == 0:
            self._sample()
        self._next()

    def _sample(self) -> None:
        self._busy.append((time.monotonic(), time.thread_time()))
        self._past.append(
            {name: meter.buckets.copy() for name, meter in [("lag", self.lag), *self._meters()]}
        )
