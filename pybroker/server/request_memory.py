"""How much memory requests that are on their way may take (`queued.max.request.bytes`).

A large request asks for all its memory when its size is known, and keeps it until it is answered.
One that began is always finished: what is left is given whole to the first that waits, even if it
asks for more than that, so that the limit slows the peers down but never stops them for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

SMALL_REQUEST_BYTES: Final = 64 * 1024
"""Requests up to here are not counted: they never wait, and a connection's buffer is that large
anyway."""


class RequestMemory:
    """What is taken of `limit_bytes`; -1 limits nothing. Those that wait are served in order."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Callable[[], None]] = deque()
        self.taken_bytes = 0

    @property
    def is_limited(self) -> bool:
        return self._limit_bytes >= 0

    def take(self, size: int, later: Callable[[], None]) -> bool:
        """Take `size` bytes. If there are none, `later` is called when it is worth asking again."""
        if self.taken_bytes >= max(self._limit_bytes, 1):
            self._waiting.append(later)
            return False
        self.taken_bytes += size
        return True

    def forget(self, later: Callable[[], None]) -> None:
        """Who gave `later` waits no more; it may have been called already."""
        if later in self._waiting:
            self._waiting.remove(later)

    def give(self, size: int) -> None:
        """Give `size` bytes back; those that wait take their turn."""
        self.taken_bytes -= size
        while self._waiting and self.taken_bytes < max(self._limit_bytes, 1):
            self._waiting.popleft()()
