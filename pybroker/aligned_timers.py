"""The times of periodic work: whole seconds, so that several timers are due at the same time. Each
wake-up costs an idle process some 0.1 ms, because its code and data are no longer in the
processor's caches. So its processor time depends on the number of wake-ups."""

from __future__ import annotations

import math
from typing import Final

TICK_S: Final = 1.0
EARLY_S: Final = 0.002
"""How much too early an event loop may call a timer."""


def aligned_due(now_s: float, wait_s: float) -> float:
    """Return when a timer is due that waits for `wait_s` from `now_s` (both in seconds of the event
    loop). A wait of at least TICK_S ends at a multiple of TICK_S, so it may be shorter by up to
    TICK_S, and longer by EARLY_S."""
    due_s = now_s + wait_s
    return due_s if wait_s < TICK_S else math.floor((due_s + EARLY_S) / TICK_S) * TICK_S
