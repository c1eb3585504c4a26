"""Moves the times of periodic work to whole seconds, so that several timers are due together and an
idle process wakes up less often.
"""

from __future__ import annotations

import math
from typing import Final

TICK_S: Final = 1.0
EARLY_S: Final = 0.002
"""How much too early an event loop may call a timer."""


def aligned_due(now_s: float, wait_s: float) -> float:
    """Return the time at which a timer is due, in seconds of the event loop's clock. The timer
    starts at `now_s` and waits for `wait_s`. If `wait_s` is at least TICK_S, the time is rounded
    down to a multiple of TICK_S.

    The event loop may call a repeating timer up to EARLY_S before a multiple of TICK_S. Therefore
    EARLY_S is added before the rounding. Otherwise the timer's next wait would be too short by
    TICK_S.
    """
    due_s = now_s + wait_s
    return due_s if wait_s < TICK_S else math.floor((due_s + EARLY_S) / TICK_S) * TICK_S
