"""The limit of memory for large requests (`queued.max.request.bytes`). A large request occupies
memory from just before it is received until it is answered. At the limit, further large requests
wait. Below the limit, a request gets all its memory, even if the total then exceeds the limit. So a
request of any size can be received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

SMALL_REQUEST_BYTES: Final = 64 * 1024
"""Requests up to this size (bytes) do not count towards the limit, and never wait: every connection
has a buffer of this size."""


class RequestMemory:
    """The memory that large requests have taken, and the queue of waiting requests. `limit_bytes`
    -1 means no limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Callable[[], None]] = deque()
        self.taken_bytes = 0

    @property
    def is_limited(self) -> bool:
        return self._limit_bytes >= 0

    def take(self, size: int, later: Callable[[], None]) -> bool:
        """Take `size` bytes and return True. If the limit is reached, take nothing and return
        False. When memory is free again, `later` is called once, and the caller can try again."""
        if self.taken_bytes >= max(self._limit_bytes, 1):
            self._waiting.append(later)
            return False
        self.taken_bytes += size
        return True

    def forget(self, later: Callable[[], None]) -> None:
        """Remove the waiting request that passed `later` to `take`. Do nothing if that request does
        not wait."""
        if later in self._waiting:
            self._waiting.remove(later)

    def give(self, size: int) -> None:
        """Give back the `size` bytes of an answered request, and let waiting requests take
        memory."""
        self.taken_bytes -= size
        while self._waiting and self.taken_bytes < max(self._limit_bytes, 1):
            self._waiting.popleft()()
