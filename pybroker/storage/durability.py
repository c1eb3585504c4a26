"""How much of a log has been made durable, and when more is due. Does no I/O itself."""

from __future__ import annotations

import threading

from pybroker.storage.log_config import LogConfig


class Durability:
    """Invariant: what lies below `recovery_point` is on the disk.

    A sync runs in another thread while the log may be shortened, so a sync that began before the
    last shortening does not count.
    """

    __slots__ = ("_lock", "_shortened", "last_flush_ms", "recovery_point")

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self.last_flush_ms = 0
        self._shortened = 0
        self._lock = threading.Lock()

    def is_due(self, end: int, config: LogConfig, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms ask for a flush of a log that ends at `end`."""
        unflushed = end - self.recovery_point
        return unflushed > 0 and (
            unflushed >= config.flush_messages or now_ms - self.last_flush_ms >= config.flush_ms
        )

    def begin(self) -> int:
        """What to give to `done` after the sync."""
        return self._shortened

    def done(self, begun: int, end: int) -> None:
        """A sync has made everything below `end` durable."""
        with self._lock:
            if begun == self._shortened:
                self.recovery_point = max(self.recovery_point, end)

    def shorten(self, end: int) -> None:
        """The log now ends at `end`."""
        with self._lock:
            self._shortened += 1
            self.recovery_point = min(self.recovery_point, end)

    def restart(self, offset: int) -> None:
        """The log is empty and begins at `offset`."""
        with self._lock:
            self._shortened += 1
            self.recovery_point = offset
