"""Ends the ZooKeeper session of a broker whose event loop is stuck, because kazoo's thread would
keep the session alive forever.

A watching thread measures how long the event loop is stuck by counting its own runs, not by a
clock. While SIGSTOP pauses the process, the thread does not run either. With a clock, the pause
would look like a stuck event loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_TURNS_PER_SESSION: Final = 12
_TURNS_MAX: Final = 8
"""If the thread runs this number of turns without a call of `alive`, it abandons the session. The
turns take two thirds of a session timeout."""


class WedgeWatch:
    """If the event loop is stuck, calls `abandon`, which gives up the ZooKeeper session. Owns a
    thread between `start` and `stop`."""

    def __init__(self, session_s: Callable[[], float], abandon: Callable[[], None]) -> None:
        """After `start`, a thread calls `abandon` when the event loop has not called `alive` for
        two thirds of `session_s`, the session timeout."""
        self._session_s = session_s
        self._abandon = abandon
        self._turns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wedge-watch", daemon=True)
            self._thread.start()

    def alive(self) -> None:
        """Report that the event loop runs."""
        self._turns = 0

    def stop(self) -> None:
        """End the thread, without waiting. Idempotent."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._session_s() / _TURNS_PER_SESSION):
            self._turns += 1
            if self._turns == _TURNS_MAX:
                log.error("zookeeper session abandoned reason=event loop is stuck")
                self._abandon()
