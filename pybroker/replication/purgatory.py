"""The purgatory: fetches wait for data, Produce requests wait for replication or for a sync of the
log.

A wait also ends at its deadline, when the leader changes, or when this broker closes the replica.
The request's handler then reads the partitions again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from pybroker.aligned_timers import aligned_due
from pybroker.model import TopicPartition

KEYS_PER_TURN_MAX: Final = 1000
"""The number of partitions that the event loop begins or stops to watch in about 1 ms."""


class Growing(Protocol):
    """The partitions that a request waits for. More partitions may be added during the wait."""

    on_pending: Callable[[TopicPartition], None] | None
    """Called with each added partition, before `progressed` or `disturbed` is called for it."""


class Wait:
    """A waiting request, from `Purgatory.begin` to `end`."""

    __slots__ = (
        "_purgatory",
        "due",
        "is_over",
        "keys",
        "missing_bytes",
        "more",
        "more_within_s",
        "on_over",
        "shared_due",
        "timed_out",
        "timer",
    )

    def __init__(
        self,
        purgatory: Purgatory,
        keys: list[TopicPartition],
        missing_bytes: int,
        on_over: Callable[[], None],
        more: Growing | None,
        more_within_s: float,
    ) -> None:
        self._purgatory = purgatory
        self.keys = keys
        self.missing_bytes = missing_bytes
        self.on_over = on_over
        self.more = more
        self.more_within_s = more_within_s
        self.due = math.inf
        """When the wait is over at the latest (s of the event loop)."""
        self.is_over = False
        """Whether `on_over` has been called, or the caller has called `end`."""
        self.timed_out = False
        """Whether the wait was over because of its deadline."""
        self.timer: asyncio.TimerHandle | None = None
        """The wait's own timer, None if it shares one."""
        self.shared_due: float | None = None
        """When the shared timer is due (s of the event loop)."""

    def added(self, key: TopicPartition) -> None:
        """Let the request wait for the partition `key` too. The wait now ends at most
        `more_within_s` seconds from now."""
        self.keys.append(key)
        self._purgatory._watch((key,), self)
        self._purgatory._shorten(self)

    def end(self) -> None:
        """Stop waiting, without a call of `on_over`. The caller must call `end` once for each wait,
        even if `on_over` was called before."""
        self._purgatory._end(self)


class Purgatory:
    """All waiting requests of one kind, for example fetches. Use it from the event loop only."""

    def __init__(self) -> None:
        self._waits: dict[Wait, None] = {}
        self._waiters: dict[TopicPartition, dict[Wait, None]] = {}
        self._due: dict[float, dict[Wait, None]] = {}
        """When a shared timer is due (s of the event loop) -> the requests that it completes."""
        self._entering: dict[Wait, set[TopicPartition]] = {}
        """Request that does not watch all its partitions yet -> the partitions that have changed
        since its wait began."""
        self.changes = 0
        """The number of calls of `progressed` and `disturbed` so far. A caller notes the number
        before it reads its partitions. If the number has grown after that, the caller reads the
        partitions again instead of waiting."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waits)

    @property
    def watched(self) -> int:
        """The sum of the waiting requests' partition counts."""
        return sum(len(waiters) for waiters in self._waiters.values())

    async def wait(
        self,
        partitions: Iterable[TopicPartition],
        *,
        missing_bytes: int,
        timeout_s: float,
        more: Growing | None = None,
        more_within_s: float = math.inf,
    ) -> None:
        """Wait until `missing_bytes` more bytes are readable, `timeout_s` has passed, or
        `disturbed` is called for one of the partitions. The wait also covers each partition that is
        added to `more` meanwhile. After such an addition, the wait lasts at most `more_within_s`
        more seconds."""
        if timeout_s <= 0:
            return
        over = asyncio.get_running_loop().create_future()

        def on_over() -> None:
            if not over.done():
                over.set_result(None)

        wait = self.begin(
            partitions,
            missing_bytes=missing_bytes,
            timeout_s=timeout_s,
            on_over=on_over,
            more=more,
            more_within_s=more_within_s,
        )
        try:
            await over
        finally:
            wait.end()

    def begin(
        self,
        partitions: Iterable[TopicPartition],
        *,
        missing_bytes: int,
        timeout_s: float,
        on_over: Callable[[], None],
        more: Growing | None = None,
        more_within_s: float = math.inf,
        shares_timer: bool = False,
    ) -> Wait:
        """Begin the wait that `wait` describes, without blocking. When the wait is over, the
        purgatory calls `on_over` once. `on_over` must not read partitions. The caller must call
        `Wait.end` once, even after `on_over`.

        With `shares_timer` several waits share a timer. The wait can then time out early, by at
        most max(1, `timeout_s` / 2) seconds.
        """
        wait = Wait(self, list(partitions), missing_bytes, on_over, more, more_within_s)
        self._waits[wait] = None
        if more is not None:
            more.on_pending = wait.added
        self._set_timer(wait, timeout_s, shares_timer)
        keys = wait.keys
        if len(keys) <= KEYS_PER_TURN_MAX:
            self._watch(keys, wait)
        else:
            self._watch(keys[:KEYS_PER_TURN_MAX], wait)
            self._entering[wait] = set()
            asyncio.get_running_loop().call_soon(self._watch_next, wait, KEYS_PER_TURN_MAX)
        return wait

    def _set_timer(self, wait: Wait, timeout_s: float, is_shared: bool) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait.due = now + timeout_s
        if not is_shared:
            wait.timer = loop.call_at(wait.due, self._time_out, wait)
            return
        due = wait.shared_due = self._shared_due(now, timeout_s)
        together = self._due.get(due)
        if together is None:
            together = self._due[due] = {}
            loop.call_at(due, self._time_out_together, due)
        together[wait] = None

    def _shared_due(self, now: float, timeout_s: float) -> float:
        """Return the due time (loop seconds) of the timer for a wait that begins at `now`. If the
        timer of an earlier wait is due in the second half of this wait, both waits share that
        timer."""
        earliest, latest = now + timeout_s / 2, now + timeout_s
        for due in reversed(self._due):
            if earliest <= due <= latest:
                return due
        return aligned_due(now, timeout_s)

    def _drop_timer(self, wait: Wait) -> None:
        if wait.timer is not None:
            wait.timer.cancel()
        elif wait.shared_due is not None:
            self._due.get(wait.shared_due, {}).pop(wait, None)

    def _shorten(self, wait: Wait) -> None:
        if wait.is_over or asyncio.get_running_loop().time() + wait.more_within_s >= wait.due:
            return
        self._drop_timer(wait)
        wait.shared_due = None
        self._set_timer(wait, wait.more_within_s, is_shared=False)

    def time_out_all(self) -> None:
        """End all waits as if they had reached their deadlines."""
        for wait in list(self._waits):
            self._time_out(wait)

    def _time_out(self, wait: Wait) -> None:
        if not wait.is_over:
            wait.timed_out = True
            self._complete(wait)

    def _time_out_together(self, due: float) -> None:
        for wait in self._due.pop(due):
            self._time_out(wait)

    def _end(self, wait: Wait) -> None:
        wait.is_over = True
        self._waits.pop(wait, None)
        self._entering.pop(wait, None)
        if wait.more is not None and wait.more.on_pending == wait.added:
            wait.more.on_pending = None
        self._drop_timer(wait)
        self._forget(wait.keys, 0, wait)

    def progressed(self, partition: TopicPartition, readable_bytes: int) -> None:
        """Record that `readable_bytes` more bytes of this partition are readable."""
        self.changes += 1
        if self._entering:
            self._changed_meanwhile(partition)
        waiters = self._waiters.get(partition)
        if not waiters:
            return
        for wait in waiters:
            wait.missing_bytes -= readable_bytes
            if wait.missing_bytes <= 0:
                self._complete(wait)

    def disturbed(self, partition: TopicPartition) -> None:
        """Wake every request that waits for this partition: the leader changed, or the replica was
        closed."""
        self.changes += 1
        self._changed_meanwhile(partition)
        for wait in self._waiters.get(partition, ()):
            self._complete(wait)

    def _watch(self, keys: Iterable[TopicPartition], wait: Wait) -> None:
        for key in keys:
            self._waiters.setdefault(key, {})[wait] = None

    def _watch_next(self, wait: Wait, start: int) -> None:
        if wait.is_over:
            self._entering.pop(wait, None)
            return
        end = start + KEYS_PER_TURN_MAX
        some = wait.keys[start:end]
        if not self._entering[wait].isdisjoint(some):
            del self._entering[wait]
            self._complete(wait)
            return
        self._watch(some, wait)
        if end < len(wait.keys):
            asyncio.get_running_loop().call_soon(self._watch_next, wait, end)
        else:
            del self._entering[wait]

    def _changed_meanwhile(self, partition: TopicPartition) -> None:
        for changed in self._entering.values():
            changed.add(partition)

    def _forget(self, keys: Sequence[TopicPartition], start: int, wait: Wait) -> None:
        end = start + KEYS_PER_TURN_MAX
        for key in keys[start:end]:
            waiters = self._waiters.get(key)
            if waiters is not None:
                waiters.pop(wait, None)
                if not waiters:
                    del self._waiters[key]
        if end < len(keys):
            asyncio.get_running_loop().call_soon(self._forget, keys, end, wait)

    @staticmethod
    def _complete(wait: Wait) -> None:
        if not wait.is_over:
            wait.is_over = True
            wait.on_over()
