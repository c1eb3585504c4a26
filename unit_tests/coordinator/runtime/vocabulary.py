"""A coordinator without a broker: a log and a shard in memory, and a clock that the test advances.

A test calls `MemoryShard.host` and `load`. `fail_over` returns the shard of the next leader.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

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
from pybroker.model import TopicPartition
from pybroker.ports import Buffer, KeyValue, Producer
from pybroker.records.batch import NO_SEQUENCE, crc_matches, iter_headers, stamp
from pybroker.records.builder import BatchBuilder
from pybroker.records.control import (
    ControlType,
    EndTransaction,
    build_end_transaction,
    parse_control,
)
from pybroker.records.record import decode_records

TOPIC: Final = "__consumer_offsets"
NOW_MS: Final = 1_600_000_000_000
BYTES_MAX: Final = 1_048_588
"""As message.max.bytes."""

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


class MemoryPartitionLog:
    """The `PartitionLog` of a leader without followers; with `holds`, of one with lagging ones."""

    def __init__(
        self, partition: int = 0, leader_epoch: int = 0, *, batches: Sequence[bytes] = ()
    ) -> None:
        self._key = TopicPartition(TOPIC, partition)
        self._leader_epoch = leader_epoch
        self.batches: list[bytes] = list(batches)
        """The batches as in the file. A test may add damaged ones."""
        self.start_offset = 0
        self.end_offset = max(
            (header.next_offset for data in self.batches for _, header in iter_headers(data)),
            default=0,
        )
        self.committed_end = self.end_offset
        """The high watermark."""
        self.holds = False
        """Whether appended records stay uncommitted until `commit`."""
        self.is_connected = True
        """Whether ZooKeeper answers the broker."""
        self.has_follower_fetches = False
        """Whether all followers have fetched recently, so that no follower can be the leader."""
        self.is_followed = asyncio.Event()
        self.is_followed.set()
        self.has_other_copies = False
        self.suspects: asyncio.Queue[int] = asyncio.Queue()
        """The offsets that were reported as suspect."""
        self.reads = 0
        self.verified_ids: list[str] = []
        """The transactional ids of all verifications."""
        self._refusals: list[BrokerError] = []
        self._refused_verifications: list[BrokerError] = []
        self._is_deposed = False
        self._changed: set[asyncio.Future[None]] = set()

    # the port

    @property
    def topic_partition(self) -> TopicPartition:
        return self._key

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.committed_end

    @property
    def has_zookeeper_lease(self) -> bool:
        return self.is_connected and not self._is_deposed

    async def is_led_now(self) -> bool:
        return self.has_zookeeper_lease

    @property
    def has_leader_lease(self) -> bool:
        return self.has_zookeeper_lease and self.has_follower_fetches

    async def followed(self) -> None:
        await self.is_followed.wait()

    def suspect(self, offset: int) -> None:
        self.suspects.put_nowait(offset)

    async def read(self, offset: int, bytes_max: int) -> Sequence[Buffer]:
        self._check()
        self.reads += 1
        await asyncio.sleep(0)
        self._check()
        found: list[Buffer] = []
        size = 0
        for data in self.batches:
            _, header = next(iter_headers(data))
            if header.next_offset <= offset:
                continue
            if found and size + len(data) > bytes_max:
                break
            found.append(data)
            size += len(data)
        return found

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        self._check()
        self.verified_ids.append(transactional_id)
        if self._refused_verifications:
            raise self._refused_verifications.pop(0)
        return producer

    def append(
        self,
        records: Sequence[KeyValue],
        timestamp_ms: int,
        producer: Producer | None = None,
        *,
        is_awaited: bool = True,
    ) -> int:
        self._check()
        if self._refusals:
            raise self._refusals.pop(0)
        builder = BatchBuilder()
        for record in records:
            builder.append(timestamp_ms, record.key, record.value)
        if producer is None:
            data = builder.build()
        else:
            owner = producer.producer_id, producer.epoch, NO_SEQUENCE
            data = builder.build(*owner, transactional=True)
        if len(data) > BYTES_MAX:
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(data)} bytes")
        return self._store(data, len(records))

    async def committed(self, offset: int) -> None:
        while True:
            self._check()
            if self.committed_end >= offset:
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.add(future)
            try:
                await future
            finally:
                self._changed.discard(future)

    # for tests

    def commit(self) -> None:
        """Commit all records, as if the followers had caught up."""
        self.committed_end = self.end_offset
        self._wake()

    def refuse(self, code: ErrorCode) -> None:
        """Make the next append fail with this code."""
        self._refusals.append(BrokerError(code, "refused by the test"))

    def refuse_verification(self, code: ErrorCode) -> None:
        """Make the next verification of a transaction fail with this code."""
        self._refused_verifications.append(BrokerError(code, "refused by the test"))

    def depose(self) -> None:
        """Make another broker the leader."""
        self._is_deposed = True
        self._wake()

    def raise_epoch(self) -> None:
        """Raise the leader epoch while the same broker leads."""
        self._leader_epoch += 1

    def append_transactional(
        self, records: Sequence[KeyValue], *, producer_id: int, producer_epoch: int = 0
    ) -> int:
        """Append records as TxnOffsetCommit does; return the offset after the last."""
        builder = BatchBuilder()
        for record in records:
            builder.append(NOW_MS, record.key, record.value)
        data = builder.build(producer_id, producer_epoch, 0, transactional=True)
        return self._store(data, len(records))

    def append_marker(
        self, *, producer_id: int, is_commit: bool = True, producer_epoch: int = 0
    ) -> int:
        """Append the marker that ends the producer's transaction; return the offset after it."""
        marker = EndTransaction(ControlType.COMMIT if is_commit else ControlType.ABORT, 0)
        data = build_end_transaction(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=NOW_MS
        )
        return self._store(data, 1)

    def next_leader(self, *, keeps_uncommitted: bool = True) -> MemoryPartitionLog:
        """Return the log of the next epoch's leader. It does not get later appends to this log."""
        self.depose()
        kept = [
            data
            for data in self.batches
            if keeps_uncommitted or next(iter_headers(data))[1].next_offset <= self.committed_end
        ]
        return MemoryPartitionLog(self._key.partition, self._leader_epoch + 1, batches=kept)

    def records(self) -> list[StoredRecord]:
        """Return the records that a replay gets, without markers."""
        stored = (stored_in(data) for data in self.batches)
        return [
            each for each in itertools.chain.from_iterable(stored) if isinstance(each, StoredRecord)
        ]

    # private

    def _store(self, data: bytes, count: int) -> int:
        stamped = bytearray(data)
        stamp(stamped, 0, self.end_offset, self._leader_epoch)
        self.batches.append(bytes(stamped))
        self.end_offset += count
        if not self.holds:
            self.commit()
        return self.end_offset

    def _check(self) -> None:
        if self._is_deposed:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"another broker leads {self._key}")

    def _wake(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)


def stored_in(batch: Buffer) -> list[StoredRecord | StoredMarker]:
    """Return the records and markers of a whole batch, as a replay gets them."""
    _, header = next(iter_headers(batch))
    assert crc_matches(batch, 0, header.size)
    records = decode_records(batch, decompressed_bytes_max=BYTES_MAX)
    if header.is_control:
        markers = [(record, parse_control(record)) for record in records]
        return [
            StoredMarker(
                record.offset,
                header.producer_id,
                header.producer_epoch,
                marker.type is ControlType.COMMIT,
            )
            for record, marker in markers
            if marker is not None
        ]
    producer = (-1, -1)
    if header.is_transactional:
        producer = (header.producer_id, header.producer_epoch)
    return [
        StoredRecord(record.offset, record.timestamp, record.key, record.value, *producer)
        for record in records
    ]


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
        return self.log.high_watermark >= offset

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
