"""Virtual time, the calendar of everything that will happen, and the trace of what has.

Nothing here waits: when nobody has anything to do, time jumps to the next entry of the calendar.
What is random comes from streams that hang on the seed and a name, so that leaving one fault out
does not change the dice of the others.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from typing import Final, Protocol

WALL_MS_AT_START: Final = 1_700_000_000_000


class Runnable(Protocol):
    """An event loop of the simulation."""

    def turn(self) -> None:
        """Run what was ready when the turn began."""


class Entry:
    """Something in the calendar; it happens unless it is cancelled."""

    __slots__ = ("action", "args", "cancelled")

    def __init__(self, action: Callable[..., object], args: tuple[object, ...]) -> None:
        self.action = action
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """One run. `now` is in virtual seconds since its start."""

    def __init__(self, seed: str, *, keep_lines: bool = False) -> None:
        """With `keep_lines` the trace is kept as text, not only as a checksum."""
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        """Turns of event loops and entries of the calendar so far."""
        self.lines: list[str] | None = [] if keep_lines else None
        self._digest = 0
        self._calendar: list[tuple[float, int, Entry]] = []
        self._entered = 0
        self._ready: list[Runnable] = []
        self._numbers = 0

    # what is random, and what is told

    def rng(self, name: str) -> random.Random:
        """A stream of its own for that name, always the same under one seed."""
        return random.Random(f"{self.seed}/{name}")

    def number(self) -> int:
        """1, 2, 3...: names for things whose addresses would differ from run to run."""
        self._numbers += 1
        return self._numbers

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self._digest = zlib.crc32(text.encode(), self._digest)
        if self.lines is not None:
            self.lines.append(f"{self.now:.6f} {text}")

    @property
    def digest(self) -> str:
        """A checksum of the trace so far, and of how many steps it took."""
        return f"{self._digest:08x}-{self.steps}"

    # the calendar

    def at(self, when: float, action: Callable[..., object], *args: object) -> Entry:
        """Let `action(*args)` happen at that time, or now if it has passed. Entries of one time
        happen in the order in which they were made."""
        entry = Entry(action, args)
        self._entered += 1
        heapq.heappush(self._calendar, (when, self._entered, entry))
        return entry

    def after(self, seconds: float, action: Callable[..., object], *args: object) -> Entry:
        return self.at(self.now + seconds, action, *args)

    def ready(self, loop: Runnable) -> None:
        """The loop has something to run; to be called once until its turn comes."""
        self._ready.append(loop)

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Let everything happen up to that time; True if `stop()`, which is asked after every
        step, ended it earlier. Raises RuntimeError where nothing would ever happen again."""
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
