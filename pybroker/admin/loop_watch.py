"""Measures the load and the delay of the event loop for the metrics.

In place of the idle ratio of Kafka's request handler threads, the metrics have the idle ratio of
the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pybroker.metrics import TimeMeter

TICK_S: Final = 0.2
"""The interval (s) of the timer that measures the event loop's delay. The timer detects a stall of
S seconds with probability S / TICK_S, and each stall of TICK_S or more."""
_SAMPLE_TICKS: Final = 25
_SAMPLES: Final = 12
"""The number of stored samples, one each 5 seconds. Together they cover the last minute."""

Meters = Callable[[], Iterable[tuple[str, TimeMeter]]]
Buckets = Mapping[int, int]


class LoopWatch:
    """Measures the delays and the idle time of the event loop from `start` to `stop`. Also keeps
    the last minute's durations of each watched `TimeMeter`."""

    def __init__(self, meters: Meters) -> None:
        """`meters` returns the meters to watch, as (unique name, meter) pairs."""
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
        """Stop the measurement. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def idle_share(self) -> float:
        """Return the share of the last minute, 0 to 1, in which the event loop's thread used no
        CPU. Must be called in the event loop's thread."""
        began, used = self._busy[0]
        elapsed = time.monotonic() - began
        if elapsed <= 0:
            return 1.0
        return min(max(1.0 - (time.thread_time() - used) / elapsed, 0.0), 1.0)

    def recent(self, name: str, meter: TimeMeter) -> Buckets:
        """Return the durations that `meter` has counted in the last minute, as bucket -> number of
        durations. `name` is the meter's unique name."""
        before = self._past[0].get(name, {})
        counted = {
            bucket: count - before.get(bucket, 0) for bucket, count in meter.buckets.copy().items()
        }
        return {bucket: count for bucket, count in counted.items() if count > 0}

    def _next(self) -> None:
        # The loop's own time does not show its delay: some loops read the clock once per iteration.
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
