"""The memory budget for unsent records (`buffer.memory`)."""

from __future__ import annotations

import asyncio
from collections import deque


class MemoryBudget:
    """A limited number of bytes for unsent records: 0 <= used <= limit. `take` serves calls in
    order, so that small records cannot starve a large record."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """The size and the future of each request that waits."""

    def try_take(self, size: int) -> bool:
        """Take `size` bytes and return True. Return False if fewer bytes are free, or if a call of
        `take` waits."""
        if self.waiting or self.used + size > self.limit:
            return False
        self.used += size
        return True

    @property
    def free(self) -> int:
        """The number of bytes that can be taken without waiting."""
        return 0 if self.waiting else self.limit - self.used

    def has(self, size: int) -> bool:
        """Return whether `size` bytes can be taken without waiting."""
        return size <= self.free

    async def take(self, size: int, timeout_s: float) -> None:
        """Wait until `size` bytes are free, and take them. `size` must not exceed the limit. Raises
        TimeoutError after `timeout_s`."""
        if self.try_take(size):
            return
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((size, ticket))
        try:
            async with asyncio.timeout(timeout_s):
                await ticket
        except BaseException:
            if ticket.done() and not ticket.cancelled():
                self.give_back(size)  # the bytes were granted during the timeout
            else:
                ticket.cancel()
                self._grant()
            raise

    def give_back(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0, "more memory was released than was taken"
        self._grant()

    def _grant(self) -> None:
        while self.waiting:
            size, ticket = self.waiting[0]
            if not ticket.done():
                if self.used + size > self.limit:
                    return
                self.used += size
                ticket.set_result(None)
            self.waiting.popleft()
