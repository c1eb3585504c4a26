"""The limit of memory for large requests that are being received or handled
(`queued.max.request.bytes`).

A large request takes memory for all its bytes as soon as its size is known, and keeps it until it
is answered. If the limit is reached, further large requests wait. As soon as the use is below the
limit, the first waiting request takes all that it needs, even if that exceeds the limit. So the
limit slows peers down, but no request waits forever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

SMALL_REQUEST_BYTES: Final = 64 * 1024
"""Requests up to this size (bytes) do not count towards the limit, and never wait: every connection
has a buffer of this size."""


class RequestMemory:
    """The memory that large requests have taken, and the requests that wait for memory, in the
    order of their arrival. `limit_bytes` is the limit; -1 means no limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Callable[[], None]] = deque()
        self.taken_bytes = 0

    @property
    def is_limited(self) -> bool:
        return self._limit_bytes >= 0

    def take(self, size: int, later: Callable[[], None]) -> bool:
        """Take `size` bytes for a request and return True, if the limit is not reached. Otherwise
        return False, and call `later` once when memory is free, so that the caller tries again."""
        if self.taken_bytes >= max(self._limit_bytes, 1):
            self._waiting.append(later)
            return False
        self.taken_bytes += size
        return True

    def forget(self, later: Callable[[], None]) -> None:
        """Remove the request with this `later` from the waiting ones. Do nothing if it does not
        wait."""
        if later in self._waiting:
            self._waiting.remove(later)

    def give(self, size: int) -> None:
        """Give back the `size` bytes that an answered request had taken, and let waiting requests
        take memory."""
        self.taken_bytes -= size
        while self._waiting and self.taken_bytes < max(self._limit_bytes, 1):
            self._waiting.popleft()()
