"""Tests of the measured delay and load of the event loop."""

from __future__ import annotations

import asyncio
import time

from pybroker.admin.loop_watch import TICK_S, LoopWatch
from pybroker.metrics import TimeMeter, quantile_s
from unit_tests.patience import until


def compute(seconds: float) -> None:
    """Use `seconds` of CPU time and at least as much elapsed time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_stall_of_the_event_loop_is_measured() -> None:
    watch = LoopWatch(lambda: ())
    watch.start()
    compute(TICK_S + 0.1)
    await until(lambda: watch.lag.count)  # the timer is overdue
    watch.stop()
    assert watch.lag.count == 1
    assert watch.lag.total_s >= 0.1


async def test_computing_event_loop_is_not_idle() -> None:
    watch = LoopWatch(lambda: ())
    watch.start()
    compute(0.2)
    busy = watch.idle_share()
    await asyncio.sleep(0.4)
    assert busy < watch.idle_share() <= 1.0
    watch.stop()


async def test_only_recent_durations_are_returned() -> None:
    meter = TimeMeter()
    meter.add(5.0)
    watch = LoopWatch(lambda: [("meter", meter)])
    watch.start()
    watch.stop()
    assert watch.recent("meter", meter) == {}
    meter.add(0.001)
    assert quantile_s(watch.recent("meter", meter), 0.99) < 0.002
    unseen = TimeMeter()
    unseen.add(1.0)
    assert sum(watch.recent("another", unseen).values()) == 1
