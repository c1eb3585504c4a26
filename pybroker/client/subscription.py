"""The state of each assigned partition of a consumer, and its fetched records. The position moves
past a record only when the record is returned. So a call that is cancelled during decoding loses no
record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from pybroker.client.errors import ClientError, DamagedRecords
from pybroker.client.fetched import DECOMPRESSED_BYTES_MAX, OFFSET_END, FetchedData
from pybroker.client.metrics import ConsumerTopicMetrics
from pybroker.errors import BrokerError, CorruptionError
from pybroker.model import NO_EPOCH, TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import CHECKED_POSITION, BatchHeader
from pybroker.records.columns import ColumnBuilder, Columns
from pybroker.records.consumed import (
    RECORDS_PER_TURN,
    SLICE_BYTES,
    ConsumerRecord,
    batch_reader,
    outline_batches,
    record_slice,
)
from pybroker.records.crc32c import checksum
from pybroker.records.record import encoded_records_steps

ROW_BYTES: Final = 32
"""The approximate size of a row of columns without its keys and values, in bytes."""
BYTES_PER_TURN: Final = 2 * 1024 * 1024
RECORD_COST: Final = BYTES_PER_TURN // RECORDS_PER_TURN
BATCH_COST: Final = 1_000
WRAP_COST: Final = BYTES_PER_TURN // 5_000
CHECKED_BYTES: Final = 512 * 1024
"""The costs of the steps, in bytes; see `Turn`."""

Keep = Callable[[FetchedData, BatchHeader, memoryview], Iterator[int]]
"""A function that decodes those records of a batch whose offsets are at or above the position, and
then moves the fetched data to its next batch. It works in steps, and yields the cost of each
step."""

EPOCHS_KEPT = 16


Wrap = Callable[[ConsumerRecord], ConsumerRecord[Any, Any]]


class Rules(NamedTuple):
    """The options for decoding. `committed_only` omits the records of aborted transactions. `wrap`
    turns a decoded record into one with deserialized key and value."""

    check_crcs: bool
    committed_only: bool
    wrap: Wrap | None = None


@dataclass(slots=True)
class Turn:
    """The work, in bytes, that may be done before other tasks must run. The limit is not in
    seconds, because then the speed of the machine would decide which records are returned."""

    left: int = BYTES_PER_TURN


@dataclass(slots=True, eq=False)
class PartitionReader:
    """The state of a partition that is assigned to a consumer."""

    topic_partition: TopicPartition
    position: int | None = None
    """The offset of the next record for the application; None while it is unknown."""
    fetch_offset: int = -1
    """The next offset to request. It is at least `position`."""
    position_epoch: int = NO_EPOCH
    """The leader epoch of the last record before `position`."""
    fetch_epoch: int = NO_EPOCH
    """The leader epoch of the last record before `fetch_offset`."""
    checked_epoch: int = NO_EPOCH
    """The latest leader epoch for which the check for log truncation before `fetch_offset` is done
    (`position_check.py`)."""
    epochs: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    """(leader epoch, first offset) of the latest leader epochs fetched since the last `jump`."""
    reset: int | None = None
    """The timestamp by which ListOffsets finds an unknown position."""
    initial: bool = False
    """Whether an unknown position begins at the group's committed offset. Without a committed
    offset, auto.offset.reset applies."""
    paused: bool = False
    era: int = 0
    """The number of calls of `jump`. A response to a request from before a call is ignored."""
    next_try: float = 0.0
    failures: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    buffered: deque[FetchedData] = field(default_factory=deque)
    ready: list[ConsumerRecord[Any, Any]] = field(default_factory=list)
    """Decoded records. Those before `ready_at` are taken."""
    ready_at: int = 0
    columns: ColumnBuilder | None = None
    """Decoded records as columns. There are decoded records or columns, not both."""
    inside_batch: bool = False
    """Whether `columns` has only a part of the records of the last batch."""
    end: tuple[int, int] | None = None
    """The position, with its leader epoch, that is set when all decoded records are taken. None
    means the position after the last decoded record."""
    decoding: Iterator[int] | None = None
    """The steps of the decoding, each with its cost in bytes."""
    problem: ClientError | None = None
    counters: ConsumerTopicMetrics = field(default_factory=ConsumerTopicMetrics)
    """The counters of the topic. They do not include the records in `ready` before `ready_at`
    yet."""

    def jump(
        self, offset: int | None, reset: int | None = None, leader_epoch: int = NO_EPOCH
    ) -> None:
        """Set the position to `offset`, and drop fetched records. If `offset` is None, ListOffsets
        finds the position by the timestamp `reset` (None: the position becomes unknown).
        `leader_epoch` is the leader epoch of the last record before the position."""
        self.era += 1
        self.initial = False
        self.position = offset
        self.position_epoch = self.fetch_epoch = leader_epoch
        self.checked_epoch = NO_EPOCH
        self.epochs.clear()
        self.fetch_offset = -1 if offset is None else offset
        self.reset = reset
        self.failures = 0
        self.next_try = 0.0
        self.buffered.clear()
        self.drop_decoded()
        self.problem = None

    @property
    def buffered_bytes(self) -> int:
        return sum(data.rest_bytes for data in self.buffered)

    def add(self, fetched: FetchedData) -> bool:
        """Store the batches of a Fetch response. Return False if the response has no whole batch at
        or above `fetch_offset`."""
        next_offset, epochs = outline_batches(fetched.data, self.fetch_offset)
        if next_offset < 0:
            return False
        for epoch, base_offset in epochs:
            if epoch != self.fetch_epoch:
                self.fetch_epoch = epoch
                self.epochs.append((epoch, base_offset))
        self.fetch_offset = next_offset
        self.buffered.append(fetched)
        return True

    @property
    def ready_count(self) -> int:
        return len(self.ready) - self.ready_at

    def decode(self, count: int, turn: Turn, rules: Rules) -> bool:
        """Decode until `count` records are ready, or all are decoded. Return False if other tasks
        must run before the next call. A damaged batch sets `problem`."""
        if self.columns is not None:
            self._decode_again()
        while self.ready_count < count and self.problem is None:
            if self.decoding is None:
                if not self.buffered:
                    break
                self.decoding = self._unpack(rules, partial(self._into_records, rules.wrap))
            if turn.left <= 0:
                return False
            self._step(turn)
        return True

    def take(self, limit: int) -> list[ConsumerRecord[Any, Any]]:
        """Return up to `limit` decoded records, and advance the position to the offset after
        them."""
        start, self.ready_at = self.ready_at, min(self.ready_at + limit, len(self.ready))
        taken = self.ready
        if start or self.ready_at < len(taken):
            taken = taken[start : self.ready_at]
        if taken:
            self.position = taken[-1].offset + 1
            self.position_epoch = taken[-1].leader_epoch
            self._taken()
        return taken

    def pop(self) -> ConsumerRecord[Any, Any]:
        """Return the first decoded record, and move the position to the offset after it."""
        record = self.ready[self.ready_at]
        self.ready_at += 1
        self.position = record.offset + 1
        self.position_epoch = record.leader_epoch
        if self.ready_at == len(self.ready):
            self._taken()
        return record

    def decode_columns(self, bytes_max: int, turn: Turn, rules: Rules, *, headers: bool) -> bool:
        """Decode whole batches, like `decode`, until `columns` has `bytes_max` bytes."""
        if self.ready or (self.columns is not None and self.columns.has_headers != headers):
            self._decode_again()
        while self.problem is None:
            if self.columns is None:
                if not self.buffered:
                    break
                self.columns = ColumnBuilder(headers=headers)
                self.decoding = None
            if self.columns_bytes >= bytes_max and not self.inside_batch:
                break
            if self.decoding is None:
                if not self.buffered:
                    break
                self.decoding = self._unpack(rules, self._into_columns)
            if turn.left <= 0:
                return False
            self._step(turn)
        return True

    @property
    def columns_bytes(self) -> int:
        """The approximate size of the decoded columns, in bytes."""
        return 0 if self.columns is None else self.columns.size + ROW_BYTES * self.columns.rows

    def take_columns(self) -> Columns | None:
        """Return the decoded columns, and advance the position to the offset after them. Return
        None if the columns have no rows, or if the last batch is only partly decoded."""
        if self.columns is None or not self.columns.rows or self.inside_batch:
            return None
        self.counters.records += self.columns.rows
        found = self.columns.finish()
        self._taken()
        return found

    def lag(self, *, committed_only: bool) -> int | None:
        """Return the number of offsets from the position to the high watermark (`committed_only`:
        the last stable offset); None if unknown."""
        end = self.last_stable_offset if committed_only else self.high_watermark
        if self.position is None or end < 0:
            return None
        return max(end - self.position, 0)

    def has_data(self) -> bool:
        return bool(self.buffered) or self.is_decoded

    @property
    def is_decoded(self) -> bool:
        """Whether there are decoded records or columns that have not been taken yet."""
        return self.ready_count > 0 or (self.columns is not None and self.columns.rows > 0)

    def _taken(self) -> None:
        """If all decoded records have been taken, empty their list. Then, if `end` is not None,
        move the position to `end`. If decoded records are left, do nothing."""
        if self.is_decoded:
            return
        self.counters.records += self.ready_at
        self.ready, self.ready_at = [], 0
        if self.end is not None:
            self._skip_to(*self.end)

    def _skip_to(self, offset: int, leader_epoch: int) -> None:
        """Move the position to `offset`, past batches without records for the application. If the
        application has not yet taken all decoded records, the position moves after it has."""
        if self.is_decoded:
            self.end = offset, leader_epoch
        else:
            self.position, self.position_epoch = max(self.position or 0, offset), leader_epoch
            self.end = None

    def drop_decoded(self) -> None:
        """Drop the decoded records or columns that have not been taken yet."""
        self.counters.records += self.ready_at
        self.ready, self.ready_at = [], 0
        self.columns = self.decoding = self.end = None
        self.inside_batch = False

    def _decode_again(self) -> None:
        """Drop the decoded records or columns that were not taken yet. Their batches will be
        decoded again, in the form that is now wanted."""
        first = self.ready[self.ready_at].offset if self.ready_count else -1
        is_lost = self.is_decoded and not (
            self.end is None and self.buffered and self.buffered[0].go_back(first)
        )
        if is_lost:
            self.jump(self.position, leader_epoch=self.position_epoch)
        self.drop_decoded()

    def _step(self, turn: Turn) -> None:
        assert self.decoding is not None
        cost = next(self.decoding, None)
        if cost is None:
            self.decoding = None
        else:
            turn.left -= cost

    def _unpack(self, rules: Rules, keep: Keep) -> Iterator[int]:
        """Decode the fetched batches. Pass each batch with records for the application to `keep`,
        which stores the records. Yield the cost of each step in bytes."""
        while self.buffered:
            fetched = self.buffered[0]
            found = fetched.next_batch()
            if found is None:
                self.buffered.popleft()
                continue
            header, batch = found
            try:
                if rules.check_crcs:
                    yield from _check_crc(header, batch)
                if fetched.is_shown(header, batch, committed_only=rules.committed_only):
                    yield from keep(fetched, header, batch)
                else:
                    fetched.pass_batch(header)
                    self._skip_to(header.next_offset, header.leader_epoch)
                    yield BATCH_COST
            except (CorruptionError, BrokerError) as error:
                self.problem = DamagedRecords(self.topic_partition, header.base_offset, str(error))
                self.problem.__cause__ = error
                return

    def _into_records(
        self, wrap: Wrap | None, fetched: FetchedData, header: BatchHeader, batch: memoryview
    ) -> Iterator[int]:
        payload = yield from encoded_records_steps(batch, header, DECOMPRESSED_BYTES_MAX)
        reader = batch_reader(*self.topic_partition, header, payload, self.position or 0)
        if len(payload) > SLICE_BYTES:
            while not reader.check(CHECKED_BYTES):
                yield CHECKED_BYTES
        has_any = False
        while not reader.done:
            records = reader.read()
            cost = BATCH_COST + RECORD_COST * len(records)
            if wrap is not None:
                records = [wrap(record) for record in records]
                cost += WRAP_COST * len(records)
            if records:
                has_any = True
                self.end = None
                if self.ready:
                    self.ready += records
                else:
                    self.ready = records
            if reader.done:
                fetched.pass_batch(header)
                if not has_any:
                    self._skip_to(header.next_offset, header.leader_epoch)
            yield cost

    def _into_columns(
        self, fetched: FetchedData, header: BatchHeader, batch: memoryview
    ) -> Iterator[int]:
        payload = yield from encoded_records_steps(batch, header, DECOMPRESSED_BYTES_MAX)
        first = self.position or 0
        assert self.columns is not None
        if len(payload) <= CHECKED_BYTES:
            rows = self.columns.add_encoded(payload, header, first, OFFSET_END)
        else:
            reader = batch_reader(*self.topic_partition, header, payload, first)
            while not reader.check(CHECKED_BYTES):
                yield CHECKED_BYTES
            self.inside_batch = True
            rows = yield from _add_slices(self.columns, payload, header, first)
            self.inside_batch = False
        fetched.pass_batch(header)
        if rows:
            self.end = header.next_offset, header.leader_epoch
        else:
            self._skip_to(header.next_offset, header.leader_epoch)
        yield BATCH_COST + len(batch)


def _add_slices(
    columns: ColumnBuilder, payload: Buffer, header: BatchHeader, first_offset: int
) -> Generator[int, None, int]:
    """Add the records of a large batch, whose `payload` was checked, to the columns. Return the
    number of rows."""
    position = rows = 0
    left = header.record_count
    while left:
        end, count = record_slice(payload, position, left, SLICE_BYTES)
        part = header._replace(record_count=count)
        rows += columns.add_encoded(
            memoryview(payload)[position:end], part, first_offset, OFFSET_END
        )
        position, left = end, left - count
        yield BATCH_COST + RECORD_COST * count
    return rows


def _check_crc(header: BatchHeader, batch: memoryview) -> Iterator[int]:
    """Check the checksum of a batch piece by piece. After each piece but the last, yield the size
    of that piece in bytes. Raises CorruptionError."""
    value = 0
    position = CHECKED_POSITION
    while len(batch) - position > CHECKED_BYTES:
        value = checksum(batch[position : position + CHECKED_BYTES], value)
        position += CHECKED_BYTES
        yield CHECKED_BYTES
    if checksum(batch[position:], value) != header.crc:
        raise CorruptionError("the checksum of the batch is wrong")
