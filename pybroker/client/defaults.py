"""What clients take who are given no clock and no dice: the machine's. A simulation puts its own
here for as long as it runs, so that an application's code need not know of it."""

from __future__ import annotations

import random
from collections.abc import Callable

from pybroker.clock import SystemClock
from pybroker.ports import Clock, Rng

make_clock: Callable[[], Clock] = SystemClock
make_rng: Callable[[], Rng] = random.Random
