"""Virtual time, the calendar of future events, and the trace of past events in a simulation.

Each purpose has its own stream of random numbers. So a fault that is removed from a schedule does
not change the other faults.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from typing import Final, Protocol

WALL_MS_AT_START: Final = 1_700_000_000_000


class Runnable(Protocol):
    """An event loop of a simulated process."""

    def turn(self) -> None:
        """Run the callbacks that were ready at the start of the call."""


class Entry:
    """A future event of the simulation, which can be cancelled."""

    __slots__ = ("action", "args", "cancelled")

    def __init__(self, action: Callable[..., object], args: tuple[object, ...]) -> None:
        self.action = action
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Environment:
    """The virtual time, future events, random streams and trace of one simulation run. `now` is in
    virtual seconds since the start."""

    def __init__(self, seed: str, *, keep_lines: bool = False) -> None:
        """Create the environment of a run. With `keep_lines` the trace is kept as text, not only as
        a checksum."""
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        """The number of steps so far: runs of an event loop's callbacks, and events of the
        calendar."""
        self.lines: list[str] | None = [] if keep_lines else None
        self._digest = 0
        self._calendar: list[tuple[float, int, Entry]] = []
        self._entered = 0
        self._ready: list[Runnable] = []
        self._numbers = 0

    # randomness and trace

    def rng(self, name: str) -> random.Random:
        """Return the random stream with this name. Its numbers depend only on the seed and the
        name."""
        return random.Random(f"{self.seed}/{name}")

    def number(self) -> int:
        """Return the next number of a counter from 1. Use such numbers to name objects: unlike
        memory addresses, they are the same in every run of a seed."""
        self._numbers += 1
        return self._numbers

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self._digest = zlib.crc32(text.encode(), self._digest)
        if self.lines is not None:
            self.lines.append(f"{self.now:.6f} {text}")

    @property
    def digest(self) -> str:
        """Return CHECKSUM-STEPS: the checksum of the trace, and the number of steps. Equal texts
        mean equal runs."""
        return f"{self._digest:08x}-{self.steps}"

    # the calendar

    def at(self, when: float, action: Callable[..., object], *args: object) -> Entry:
        """Schedule `action(*args)` at the virtual time `when`, or now if this time has passed.
        Events at the same time happen in the order in which they were scheduled."""
        entry = Entry(action, args)
        self._entered += 1
        heapq.heappush(self._calendar, (when, self._entered, entry))
        return entry

    def after(self, seconds: float, action: Callable[..., object], *args: object) -> Entry:
        return self.at(self.now + seconds, action, *args)

    def ready(self, loop: Runnable) -> None:
        """Queue an event loop that has callbacks to run. A queued loop must not be queued again
        before it has run."""
        self._ready.append(loop)

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Run all events up to the virtual time `until`, then return False. Before each step `stop`
        is called. If `stop()` returns True, run no more events, and return True."""
        while stop is None or not stop():
            if self._ready:
                loops, self._ready = self._ready, []
                for loop in loops:
                    self.steps += 1
                    loop.turn()
                continue
            if not self._calendar or self._calendar[0][0] > until:
                self.now = max(self.now, until)
                return False
            when, _, entry = heapq.heappop(self._calendar)
            if not entry.cancelled:
                self.steps += 1
                self.now = max(self.now, when)
                entry.action(*entry.args)
        return True
