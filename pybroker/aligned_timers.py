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
    """Return the due time (s, event loop's clock) of a timer that starts at `now_s`. If `wait_s` is
    at least TICK_S, the due time is rounded down to a multiple of TICK_S.

    EARLY_S is added before the rounding, because an event loop may call a timer just before its due
    time. Without EARLY_S, the next due time would be one TICK_S too early.
    """
    due_s = now_s + wait_s
    return due_s if wait_s < TICK_S else math.floor((due_s + EARLY_S) / TICK_S) * TICK_S
