"""The default clock and random numbers of clients: the machine's. A simulation replaces them here
while it runs, so that an application's code need not know of it."""

from __future__ import annotations

import random
from collections.abc import Callable

from pybroker.clock import SystemClock
from pybroker.ports import Clock, Rng

make_clock: Callable[[], Clock] = SystemClock
make_rng: Callable[[], Rng] = random.Random
