"""A coordinator without a broker: a log and a shard in memory, and a clock that the test advances.

A test calls `MemoryShard.host` and `load`. `fail_over` returns the shard of the next leader.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from pybroker.clock import ManualClock
from pybroker.coordinator.runtime.refusals import client_error, transactional_error
from pybroker.coordinator.runtime.shard import (
    Coordinator,
    ShardContext,
    StoredMarker,
    StoredRecord,
    Timer,
)
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import KeyValue, Producer
from unit_tests.coordinator.runtime.memory_log import NOW_MS, MemoryPartitionLog, stored_in

C = TypeVar("C", bound=Coordinator)


class LastValues:
    """Keeps the last value of each key. Fails to replay the value `poison`."""

    def __init__(self, context: ShardContext) -> None:
        self.context = context
        self.values: dict[bytes | None, bytes | None] = {}
        self.markers: list[StoredMarker] = []
        self.loads = 0
        self.load_failures: list[Exception] = []
        self.has_ended = False

    def put(self, key: bytes, value: bytes | None) -> int:
        return self.context.append([KeyValue(key, value)])

    def replay(self, record: StoredRecord) -> None:
        if record.value == b"poison":
            raise ValueError("poison")
        self.values[record.key] = record.value

    def replay_marker(self, marker: StoredMarker) -> None:
        self.markers.append(marker)

    async def loaded(self) -> None:
        self.loads += 1
        if self.load_failures:
            raise self.load_failures.pop(0)

    def ended(self) -> None:
        self.has_ended = True


class _Call:
    """A timer of a `MemoryShard`."""

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class MemoryShard:
    """A `ShardContext` over a log in memory. Time passes in `advance` only."""

    def __init__(
        self,
        partition: int = 0,
        *,
        log: MemoryPartitionLog | None = None,
        clock: ManualClock | None = None,
        fence_version: int = 1,
        seed: int = 0,
    ) -> None:
        self.log = MemoryPartitionLog(partition) if log is None else log
        self.clock = ManualClock(NOW_MS) if clock is None else clock
        self.rng = random.Random(seed)
        self.fence_version = fence_version
        self.has_ended = False
        self.reasons: list[str] = []
        """The reasons of its resignations."""
        self._seed = seed
        self._coordinator: Coordinator | None = None
        self._calls: list[tuple[float, int, _Call]] = []
        self._order = itertools.count()
        self._committing: set[asyncio.Future[None]] = set()

    def host(self, make: Callable[[MemoryShard], C]) -> C:
        """Create the coordinator of this shard."""
        made = make(self)
        self._coordinator = made
        return made

    async def load(self) -> None:
        """Replay the log, then call `loaded`."""
        assert self._coordinator is not None
        for data in self.log.batches:
            for stored in stored_in(data):
                if isinstance(stored, StoredMarker):
                    self._coordinator.replay_marker(stored)
                else:
                    self._coordinator.replay(stored)
        await self._coordinator.loaded()

    def fail_over(self, *, keeps_uncommitted: bool = True) -> MemoryShard:
        """End this shard, and return the next leader's shard. Then call its `host` and `load`."""
        log = self.log.next_leader(keeps_uncommitted=keeps_uncommitted)
        self.end()
        return MemoryShard(
            log=log, clock=self.clock, fence_version=self.fence_version + 1, seed=self._seed + 1
        )

    def end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._calls.clear()
        for waiting in self._committing:
            waiting.cancel()
        if self._coordinator is not None:
            self._coordinator.ended()

    def advance(self, seconds: float) -> None:
        """Advance the clock. Timers that become due are called at their times, in order."""
        until = self.clock.monotonic() + seconds
        while self._calls and self._calls[0][0] <= until:
            due, _, call = heapq.heappop(self._calls)
            if not call.is_cancelled:
                self.clock.advance(max(due - self.clock.monotonic(), 0))
                call.callback()
        self.clock.advance(max(until - self.clock.monotonic(), 0))

    def end_transaction(self, producer_id: int, *, is_commit: bool = True) -> int:
        """Append a marker as the handler of WriteTxnMarkers does. Return its offset."""
        offset = self.log.end_offset
        self.log.append_marker(producer_id=producer_id, is_commit=is_commit)
        assert self._coordinator is not None
        self._coordinator.replay_marker(StoredMarker(offset, producer_id, 0, is_commit))
        return offset

    @property
    def due_s(self) -> list[float]:
        """The seconds until each timer is due."""
        now = self.clock.monotonic()
        return sorted(due - now for due, _, call in self._calls if not call.is_cancelled)

    # the context

    @property
    def partition(self) -> int:
        return self.log.topic_partition.partition

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    @property
    def log_end(self) -> int:
        return self.log.end_offset

    def require_current(self) -> None:
        self._check()
        if not self.log.has_zookeeper_lease:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, "the broker is cut off from ZooKeeper")

    async def confirm_current(self) -> None:
        self.require_current()

    @property
    def is_certainly_current(self) -> bool:
        return not self.has_ended and self.log.has_leader_lease

    async def followed(self) -> None:
        await self.log.followed()
        self._check()

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        self._check()
        try:
            return await self.log.verified(transactional_id, producer)
        except BrokerError as error:
            raise transactional_error(error) from error

    def append(
        self,
        records: Sequence[KeyValue],
        producer: Producer | None = None,
        *,
        is_awaited: bool = True,
    ) -> int:
        self._check()
        assert self._coordinator is not None
        if not records:
            return self.log.end_offset
        now_ms = self.clock.wall_ms()
        try:
            end = self.log.append(records, now_ms, producer, is_awaited=is_awaited)
        except BrokerError as error:
            translated = client_error if producer is None else transactional_error
            raise translated(error) from error
        owner = (-1, -1) if producer is None else (producer.producer_id, producer.epoch)
        for offset, record in enumerate(records, end - len(records)):
            self._coordinator.replay(StoredRecord(offset, now_ms, record.key, record.value, *owner))
        return end

    async def committed(self, offset: int) -> None:
        self._check()
        waiting = asyncio.ensure_future(self.log.committed(offset))
        self._committing.add(waiting)
        try:
            await waiting
        except BrokerError as error:
            raise client_error(error) from error
        except asyncio.CancelledError:
            if not self.has_ended:
                raise
            self._check()
        finally:
            waiting.cancel()
            self._committing.discard(waiting)

    def is_committed(self, offset: int) -> bool:
        self._check()
        try:
            return self.log.is_committed(offset)
        except BrokerError as error:
            raise client_error(error) from error

    def when_committed(self, offset: int, callback: Callable[[], None]) -> Callable[[], None]:
        self._check()
        try:
            return self.log.when_committed(offset, callback)
        except BrokerError as error:
            raise client_error(error) from error

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self._check()
        call = _Call(self.clock.monotonic() + delay_s, callback)
        heapq.heappush(self._calls, (call.due, next(self._order), call))
        return call

    def resign(self, reason: str) -> None:
        if not self.has_ended:
            self.reasons.append(reason)
            self.end()

    def _check(self) -> None:
        if self.has_ended:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, "the shard has ended")
