"""The waiting requests: fetches that wait for data, and produce requests with acks=all that wait
for replication.

A waiting request names its partitions. The code that changes a partition calls `progressed` (more
bytes can be read) or `disturbed` (the leader changed, or the replica was closed). The wait ends
after enough bytes, at the first call of `disturbed`, or at the deadline. The request's handler then
reads the partitions again for the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from pybroker.model import TopicPartition

KEYS_PER_TURN_MAX: Final = 1000
"""The number of partitions that the event loop begins or stops to watch in about 1 ms."""


class _Waiter:
    __slots__ = ("future", "missing_bytes")

    def __init__(self, future: asyncio.Future[None], missing_bytes: int) -> None:
        self.future = future
        self.missing_bytes = missing_bytes


class Growing(Protocol):
    """A set of partitions to which partitions may be added while a request waits for them."""

    on_pending: Callable[[TopicPartition], None] | None
    """Called with each partition that is added, before its change is reported to the purgatory."""


class Purgatory:
    """All waiting requests of one kind, for example fetches. Used from the event loop only."""

    def __init__(self) -> None:
        self._requests = 0
        self._waiters: dict[TopicPartition, dict[_Waiter, None]] = {}
        self._entering: dict[_Waiter, set[TopicPartition]] = {}
        """Request that does not watch all its partitions yet -> the partitions that have changed
        since its wait began."""
        self.changes = 0
        """The number of calls of `progressed` and `disturbed` so far. A caller notes the number
        before it reads its partitions. If the number has grown after that, the caller reads the
        partitions again instead of waiting."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return self._requests

    @property
    def watched(self) -> int:
        """How many partitions the waiting requests watch, counted for each request."""
        return sum(len(waiters) for waiters in self._waiters.values())

    async def wait(
        self,
        partitions: Iterable[TopicPartition],
        *,
        missing_bytes: int,
        timeout_s: float,
        more: Growing | None = None,
    ) -> None:
        """Wait until `missing_bytes` more bytes of these partitions can be read, until one of them
        is disturbed, or until `timeout_s` has passed. A partition that is added to `more` during
        the wait counts from then on."""
        if timeout_s <= 0:
            return
        keys = list(partitions)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), missing_bytes)
        self._watch(keys[:KEYS_PER_TURN_MAX], waiter)

        def added(key: TopicPartition) -> None:
            keys.append(key)
            self._watch((key,), waiter)

        self._requests += 1
        if more is not None:
            more.on_pending = added
        timer = loop.call_later(timeout_s, self._complete, waiter)
        try:
            if len(keys) > KEYS_PER_TURN_MAX:
                await self._watch_in_turns(keys, waiter)
            await waiter.future
        finally:
            self._requests -= 1
            if more is not None and more.on_pending is added:
                more.on_pending = None
            timer.cancel()
            self._forget(keys, 0, waiter)

    def progressed(self, partition: TopicPartition, readable_bytes: int) -> None:
        """Note that `readable_bytes` more bytes of this partition can be read."""
        self.changes += 1
        if self._entering:
            self._changed_meanwhile(partition)
        waiters = self._waiters.get(partition)
        if not waiters:
            return
        for waiter in waiters:
            waiter.missing_bytes -= readable_bytes
            if waiter.missing_bytes <= 0:
                self._complete(waiter)

    def disturbed(self, partition: TopicPartition) -> None:
        """Wake every request that waits for this partition, because the leader changed or the
        replica was closed."""
        self.changes += 1
        self._changed_meanwhile(partition)
        for waiter in self._waiters.get(partition, ()):
            self._complete(waiter)

    def _watch(self, keys: Iterable[TopicPartition], waiter: _Waiter) -> None:
        for key in keys:
            self._waiters.setdefault(key, {})[waiter] = None

    async def _watch_in_turns(self, keys: Sequence[TopicPartition], waiter: _Waiter) -> None:
        """Watch the keys after the first `KEYS_PER_TURN_MAX`, and let other tasks run in between.
        If a key changes before the request watches it, the wait ends, too."""
        changed = self._entering[waiter] = set()
        try:
            for start in range(KEYS_PER_TURN_MAX, len(keys), KEYS_PER_TURN_MAX):
                await asyncio.sleep(0)
                some = keys[start : start + KEYS_PER_TURN_MAX]
                if not changed.isdisjoint(some):
                    self._complete(waiter)
                if waiter.future.done():
                    return
                self._watch(some, waiter)
        finally:
            del self._entering[waiter]

    def _changed_meanwhile(self, partition: TopicPartition) -> None:
        for changed in self._entering.values():
            changed.add(partition)

    def _forget(self, keys: Sequence[TopicPartition], start: int, waiter: _Waiter) -> None:
        """Stop watching the keys from index `start` on, `KEYS_PER_TURN_MAX` at a time."""
        end = start + KEYS_PER_TURN_MAX
        for key in keys[start:end]:
            waiters = self._waiters.get(key)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiters[key]
        if end < len(keys):
            asyncio.get_running_loop().call_soon(self._forget, keys, end, waiter)

    @staticmethod
    def _complete(waiter: _Waiter) -> None:
        if not waiter.future.done():
            waiter.future.set_result(None)
