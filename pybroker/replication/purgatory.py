"""Requests that wait: for data (fetch) or for replication (produce with acks=all).

A waiting request names the partitions it waits for. Whoever changes one calls `progressed` (bytes
became readable) or `disturbed` (leadership changed, the partition is gone). A request completes
when it has seen enough bytes, at the first disturbance, or at its deadline; who waited then looks
for itself what there is to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pybroker.model import TopicPartition


class _Waiter:
    __slots__ = ("future", "missing_bytes")

    def __init__(self, future: asyncio.Future[None], missing_bytes: int) -> None:
        self.future = future
        self.missing_bytes = missing_bytes


class Purgatory:
    """All waiting requests of one kind. Used from the event loop only."""

    def __init__(self) -> None:
        self._waiters: dict[TopicPartition, dict[_Waiter, None]] = {}
        self.changes = 0
        """Grows with every `progressed` and `disturbed`: who looked before, and waits only now,
        sees whether to look again."""

    def __len__(self) -> int:
        """How many (partition, request) pairs are watched."""
        return sum(len(waiters) for waiters in self._waiters.values())

    async def wait(
        self, partitions: Iterable[TopicPartition], *, missing_bytes: int, timeout_s: float
    ) -> None:
        """Return when `missing_bytes` more bytes became readable, after a disturbance of one of the
        partitions, or after `timeout_s`."""
        if timeout_s <= 0:
            return
        keys = list(partitions)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), missing_bytes)
        for key in keys:
            self._waiters.setdefault(key, {})[waiter] = None
        timer = loop.call_later(timeout_s, self._complete, waiter)
        try:
            await waiter.future
        finally:
            timer.cancel()
            for key in keys:
                self._forget(key, waiter)

    def progressed(self, partition: TopicPartition, readable_bytes: int) -> None:
        """`readable_bytes` more of this partition can be read."""
        self.changes += 1
        waiters = self._waiters.get(partition)
        if not waiters:
            return
        for waiter in waiters:
            waiter.missing_bytes -= readable_bytes
            if waiter.missing_bytes <= 0:
                self._complete(waiter)

    def disturbed(self, partition: TopicPartition) -> None:
        """The partition changed in a way that every waiting request has to look at."""
        self.changes += 1
        for waiter in self._waiters.get(partition, ()):
            self._complete(waiter)

    def _forget(self, key: TopicPartition, waiter: _Waiter) -> None:
        waiters = self._waiters.get(key)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[key]

    @staticmethod
    def _complete(waiter: _Waiter) -> None:
        if not waiter.future.done():
            waiter.future.set_result(None)
