"""The default clock and random number generator of clients. A simulation replaces them here, so
that application code runs in the simulation without changes."""

from __future__ import annotations

import random
from collections.abc import Callable

from pybroker.clock import SystemClock
from pybroker.ports import Clock, Rng

make_clock: Callable[[], Clock] = SystemClock
make_rng: Callable[[], Rng] = random.Random
