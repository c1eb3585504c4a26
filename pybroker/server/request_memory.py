"""The memory for requests that are being received or handled (`queued.max.request.bytes`).

A large request takes all its memory as soon as its size is known, and keeps it until it is
answered. A request that has begun to arrive is always finished: the first one that waits gets all
remaining memory, even if it needs more. So the limit slows peers down but never stops them forever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

SMALL_REQUEST_BYTES: Final = 64 * 1024
"""Requests up to this size are not counted. They never wait, since every connection has a buffer of
this size."""


class RequestMemory:
    """The memory taken out of `limit_bytes`; -1 means no limit. Waiting requests are served in
    order."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Callable[[], None]] = deque()
        self.taken_bytes = 0

    @property
    def is_limited(self) -> bool:
        return self._limit_bytes >= 0

    def take(self, size: int, later: Callable[[], None]) -> bool:
        """Take `size` bytes and return whether that succeeded. If not, call `later` when another
        attempt may succeed."""
        if self.taken_bytes >= max(self._limit_bytes, 1):
            self._waiting.append(later)
            return False
        self.taken_bytes += size
        return True

    def forget(self, later: Callable[[], None]) -> None:
        """Remove a waiting request, even if its `later` has been called already."""
        if later in self._waiting:
            self._waiting.remove(later)

    def give(self, size: int) -> None:
        """Return `size` bytes, and serve waiting requests."""
        self.taken_bytes -= size
        while self._waiting and self.taken_bytes < max(self._limit_bytes, 1):
            self._waiting.popleft()()
