"""Ends a session whose event loop has come to a stop.

kazoo's thread answers the server whatever the loop does, so a broker that does nothing any more
would keep its session, and its leaderships, for ever. A thread counts its own turns, not seconds:
where the whole process was stopped it has not run either, and the session tells how long that was.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_TURNS_PER_SESSION: Final = 12
_TURNS_MAX: Final = 8
"""Two thirds of a session."""


class WedgeWatch:
    """Owns a thread between `start` and `stop`."""

    def __init__(self, session_s: Callable[[], float], give_up: Callable[[], None]) -> None:
        """`give_up` is called in the thread when the loop has not called `alive` for too long."""
        self._session_s = session_s
        self._give_up = give_up
        self._turns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wedge-watch", daemon=True)
            self._thread.start()

    def alive(self) -> None:
        """The loop runs."""
        self._turns = 0

    def stop(self) -> None:
        """Idempotent; does not wait."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._session_s() / _TURNS_PER_SESSION):
            self._turns += 1
            if self._turns == _TURNS_MAX:
                log.error("zookeeper the event loop has come to a stop, giving the session up")
                self._give_up()
