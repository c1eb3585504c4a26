"""The default clock and random number generator of clients. A simulation replaces them here."""

from __future__ import annotations

import random
from collections.abc import Callable

from pybroker.clock import SystemClock
from pybroker.ports import Clock, Rng

make_clock: Callable[[], Clock] = SystemClock
make_rng: Callable[[], Rng] = random.Random


def wall_ns_of(clock: Clock) -> Callable[[], int]:
    """Return a function that gives the wall time of `clock` in ns since 1970."""
    if type(clock) is SystemClock:
        return clock.wall_ns
    return lambda: clock.wall_ms() * 1_000_000
