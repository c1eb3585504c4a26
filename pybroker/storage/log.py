"""The log of one partition: appends at the end, reads by offset, truncation, retention.

One thread at a time changes a log; other threads may call `flush` and read.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

from pybroker.errors import BrokerError, CorruptionError, DiskFull, ErrorCode, StorageError
from pybroker.model import NO_TIMESTAMP, TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader, TimestampType, restamp_log_append_time, stamp
from pybroker.records.control import EndTransaction
from pybroker.storage import lookup
from pybroker.storage.durability import Durability
from pybroker.storage.epoch_file import EpochFile
from pybroker.storage.epochs import EPOCH_MAX
from pybroker.storage.log_config import NEVER, LogConfig
from pybroker.storage.log_parts import AppendResult, LogOwner, LogParts
from pybroker.storage.producer_state import EXEMPT, ProducerState, Verification
from pybroker.storage.retention import SegmentFacts, expired
from pybroker.storage.segment import Appended, Segment
from pybroker.storage.segment_roll import NO_ROOM, SegmentRoll
from pybroker.storage.txn_index import AbortedTransaction


class Log:
    """One partition's log. Invariants: log start <= log end; recovery point <= log end; records
    below the recovery point are durable. After a disk failure methods raise KAFKA_STORAGE_ERROR."""

    def __init__(self, topic_partition: TopicPartition, parts: LogParts, owner: LogOwner) -> None:
        self.topic_partition = topic_partition
        self.topic_id: uuid.UUID | None = None
        self.directory = parts.directory
        self.config = parts.config
        self.damage = parts.damage
        self.log_start_offset = parts.log_start_offset
        self._durability = Durability(parts.recovery_point, parts.settled_end)
        self.last_append_ms = 0
        self.segments = parts.segments
        self._unreachable = parts.unreachable
        self.epoch_file = EpochFile(parts.directory, parts.disk, parts.epochs, parts.epochs_changed)
        self.producers = parts.producers
        self._snapshots = parts.snapshots
        self._owner = owner
        self.changes = owner.changes
        self._failure: StorageError | None = None
        self._segment_roll = SegmentRoll(owner.rng, parts.config)
        self.on_start_moved: Callable[[], None] = lambda: None  # called on the event loop

    # -- what it is

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record; in a damaged log, the end of its readable records."""
        return self.segments.active.end[1]

    @property
    def durable_end(self) -> int:
        """The end offset of the records that are synced or need no sync under flush.messages."""
        if self.config.flush_messages == NEVER or self.damage is not None:
            return self.segments.active.end[1]
        return self._durability.counted_end(self.log_end_offset)

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def first_base_offset(self) -> int:
        return self.segments.first.base_offset

    @property
    def recovery_point(self) -> int:
        """The offset below which all records are durable."""
        return self._durability.recovery_point

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    @property
    def latest_epoch(self) -> int:
        """The latest leader epoch of the log; -1 if it has none."""
        return self.epoch_file.history.latest_epoch

    @property
    def failure(self) -> StorageError | None:
        """The error that ended the use of the log; None while the log is usable."""
        return self._failure

    def set_config(self, config: LogConfig) -> None:
        self.config = config
        self._segment_roll.begin(config, 0)
        if self.durable_end < self.log_end_offset:
            self._owner.sync_due(self)

    # -- appending

    def append(
        self,
        data: bytearray | memoryview,
        header: BatchHeader,
        *,
        leader_epoch: int,
        now_ms: int,
        guard: Verification | None = EXEMPT,
    ) -> AppendResult:
        """Append one validated batch to the leader's log, and write its offset and leader epoch
        into `data`. `header` is the header as received. Raises BrokerError KAFKA_STORAGE_ERROR, and
        the errors of `ProducerState.check`."""
        self._check_usable()
        stamped_ms = NO_TIMESTAMP
        if self.config.timestamp_type is TimestampType.LOG_APPEND_TIME:
            stamped_ms = now_ms
        marker = None
        if header.producer_id >= 0:
            marker = lookup.marker_of(data, header)
            duplicate = self.producers.check(header, marker, guard)
            if duplicate is not None:
                was_ms = duplicate.timestamp if stamped_ms >= 0 else NO_TIMESTAMP
                first, last = duplicate.first_offset, duplicate.last_offset
                return AppendResult(first, last, was_ms, self.log_start_offset, duplicate=True)
        if stamped_ms >= 0:
            header = restamp_log_append_time(data, 0, len(data), stamped_ms)
        active, timestamp = self.segments.active, header.max_timestamp
        size, first_offset = active.end
        last_offset = first_offset + header.last_offset_delta
        stamp(data, 0, first_offset, leader_epoch)
        room = self._segment_roll.room
        if (
            size + len(data) > room.size_bytes
            or last_offset > room.last_offset
            or not 0 <= timestamp <= room.timestamp_ms
        ):
            batch = Appended(0, len(data), last_offset, timestamp)
            active = self._make_room(batch, first_offset, now_ms)
        if leader_epoch != self.epoch_file.last_recorded or self.epoch_file.changed:
            self._record_epoch(leader_epoch, first_offset)
        try:
            active.append_batch(data, last_offset, timestamp, self.config.index_interval_bytes)
        except StorageError as error:
            raise self._cut_back(error) from error
        if header.producer_id >= 0:
            self._remember(header, first_offset, now_ms, marker)
        self._after_append(now_ms)
        result = (first_offset, last_offset, stamped_ms, self.log_start_offset, False)
        return tuple.__new__(AppendResult, result)  # faster than AppendResult(...)

    def append_replicated(self, data: Buffer, *, now_ms: int, epoch_max: int = EPOCH_MAX) -> None:
        """Append batches from the leader to the follower's log, unchanged. Ignores a partial batch
        at the end. Raises BrokerError KAFKA_STORAGE_ERROR. Raises BrokerError CORRUPT_MESSAGE if a
        checksum is wrong, a batch overlaps an earlier batch, or a leader epoch falls or exceeds
        `epoch_max`."""
        self._check_usable()
        batches = lookup.checked_batches(data, self.log_end_offset, self.latest_epoch, epoch_max)
        if not batches:
            return
        run: list[tuple[int, BatchHeader]] = []
        try:
            with memoryview(data) as view:
                for position, header in batches:
                    batch = Appended(0, header.size, header.last_offset, header.max_timestamp)
                    pending_bytes = position - run[0][0] if run else 0
                    active = self.segments.active
                    if self._segment_roll.is_due(active, batch, self.config, now_ms, pending_bytes):
                        self._write_run(view, run, now_ms)
                        self._start_segment(header.base_offset, now_ms)
                        run = []
                    self._record_epoch(header.leader_epoch, header.base_offset)
                    run.append((position, header))
                self._write_run(view, run, now_ms)
        except (BrokerError, StorageError):
            self.epoch_file.remove_unwritten(self.log_end_offset)
            raise
        self._after_append(now_ms)

    def _write_run(self, view: memoryview, run: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Write the batches `run` (position in `view`, header), and update the producer state."""
        if not run:
            return
        start, end = run[0][0], run[-1][0] + run[-1][1].size
        batches = [
            Appended(position - start, header.size, header.last_offset, header.max_timestamp)
            for position, header in run
        ]
        try:
            self.segments.active.append(view[start:end], batches, self.config.index_interval_bytes)
        except StorageError as error:
            raise self._cut_back(error) from error
        self.changes.appended(self.topic_partition)
        for position, header in run:
            if header.producer_id >= 0:
                marker = lookup.marker_of(view[position : position + header.size], header)
                self._remember(header, header.base_offset, now_ms, marker)

    def _make_room(self, batch: Appended, first_offset: int, now_ms: int) -> Segment:
        """Return the active segment, or a new one if `batch` exceeds the active one's limits."""
        if self._segment_roll.is_due(self.segments.active, batch, self.config, now_ms, 0):
            self._start_segment(first_offset, now_ms)
        return self.segments.active

    def _cut_back(self, error: StorageError) -> BrokerError:
        """Undo the write that failed with `error`. Return the error to raise."""
        try:
            # No batch may follow a partial write that the disk could not undo.
            self.segments.active.file.truncate(self.segments.active.size)
        except StorageError as worse:
            return self.fail(worse)
        return self._owner.refuse(self.topic_partition, error)

    def _after_append(self, now_ms: int) -> None:
        self._segment_roll.written(now_ms)
        self.last_append_ms = now_ms
        self.changes.appended(self.topic_partition)
        if self.config.flush_messages != NEVER:
            tolerated = self._durability.tolerates(self.log_end_offset, self.config)
            if not tolerated and not self._owner.sync_due(self):
                self.flush()

    def _record_epoch(self, epoch: int, start_offset: int) -> None:
        self.epoch_file.record(epoch, start_offset)
        if self.epoch_file.changed:
            self.persist_epochs()

    def _remember(
        self, header: BatchHeader, first_offset: int, now_ms: int, marker: EndTransaction | None
    ) -> None:
        completed = self.producers.apply(header, first_offset, now_ms, marker)
        if completed is None or not completed.aborted:
            return
        try:
            self.segments.active.transactions.append(self.producers.aborted(completed))
        except StorageError as error:
            raise self.fail(error) from error  # else readers would see aborted records

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(self._failure))
        if self.damage is not None:
            raise self.damage.as_error(self.topic_partition)

    def fail(self, error: StorageError) -> BrokerError:
        """End the use of the log: its disk has failed. Return the error to raise."""
        if self._failure is None:
            self._failure = error
            self._owner.failed(self.topic_partition, error)
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def release(self, reason: str = "it is deleted") -> None:
        """Close the files. Later calls raise BrokerError KAFKA_STORAGE_ERROR."""
        self._failure = StorageError(f"{self.topic_partition}: {reason}")
        self.epoch_file.release()
        self.segments.release()

    # -- segments

    def roll(self, now_ms: int = 0) -> None:
        """Begin a new segment, unless the active one is empty."""
        self._check_usable()
        if self.segments.active.size:
            self._start_segment(self.log_end_offset, now_ms)

    def _start_segment(self, base_offset: int, now_ms: int, *, seals: bool = True) -> None:
        try:
            if seals:
                self.segments.active.seal()
            self._snapshots.write(base_offset, self.producers)
            self.segments.begin(base_offset)
        except StorageError as error:
            raise self._owner.refuse(self.topic_partition, error) from error
        self._snapshots.keep(self.segments.bases, base_offset)
        self._segment_roll.begin(self.config, now_ms)

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_offset: int,
        at_least_one_batch: bool,
        cached_only: bool,
    ) -> Buffer | None:
        """Return whole batches below `upper_offset`, beginning with the batch that contains
        `offset`; b"" if there is none. Only the first batch may exceed `max_bytes`, and only with
        `at_least_one_batch`. With `cached_only`, None means that the read would wait for the disk:
        repeat it in a thread.

        Raises BrokerError:

        - OFFSET_OUT_OF_RANGE: `offset` is outside the log.
        - CORRUPT_MESSAGE: the batches are damaged.
        - KAFKA_STORAGE_ERROR: the disk fails, or a known corrupt range begins at or below `offset`.
        """
        end = self.log_end_offset
        if self.damage is not None and offset >= self.damage.offset:
            raise self.damage.as_error(self.topic_partition)
        if not self.log_start_offset <= offset <= end:
            raise self._out_of_range(offset)
        if offset >= upper_offset or offset == end or (max_bytes <= 0 and not at_least_one_batch):
            return b""
        try:
            return lookup.read(
                self.segments, offset, max_bytes, upper_offset, at_least_one_batch, cached_only
            )
        except (StorageError, CorruptionError) as error:
            if offset < self.log_start_offset:  # deleted while it was being read
                raise self._out_of_range(offset) from error
            raise lookup.unreadable(error) from error

    def _out_of_range(self, offset: int) -> BrokerError:
        start, end = self.log_start_offset, self.log_end_offset
        return lookup.out_of_range(self.topic_partition, offset, start, end)

    def offset_for_timestamp(
        self, timestamp_ms: int, upper_offset: int
    ) -> tuple[int, int, int] | None:
        """Return offset, timestamp and leader epoch of the first record whose timestamp is at least
        `timestamp_ms`; None if no such record is below `upper_offset`. May wait for the disk.
        Raises BrokerError."""
        start = self.log_start_offset
        return lookup.offset_for_timestamp(self.segments, timestamp_ms, start, upper_offset)

    def offset_of_max_timestamp(self, upper_offset: int) -> tuple[int, int, int] | None:
        """Return offset, timestamp and leader epoch of the first record with the largest timestamp
        (KIP-734); None if no record is below `upper_offset`. Raises BrokerError."""
        return lookup.offset_of_max_timestamp(self.segments, self.log_start_offset, upper_offset)

    def aborted_transactions(
        self, from_offset: int, to_offset: int, *, cached_only: bool = False
    ) -> list[AbortedTransaction]:
        """Return aborted transactions with records in [from_offset, to_offset), oldest first.
        Raises NotCached if `cached_only` is True and the lookup would wait for the disk."""
        return lookup.aborted_transactions(self.segments, from_offset, to_offset, cached_only)

    # -- leader epochs

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`; -1 if unknown."""
        return self.epoch_file.history.epoch_of(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return the largest known leader epoch up to `epoch`, and its end offset (KIP-279); (-1,
        -1) if `epoch` is larger than all known epochs."""
        return self.epoch_file.history.end_offset(epoch, self.log_end_offset)

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """Begin the leader epoch `epoch` at `start_offset`. The first append in this epoch makes
        the epoch durable."""
        self.epoch_file.begin(epoch, start_offset, self.log_end_offset)

    def persist_epochs(self) -> None:
        """Write changed leader epochs to their file. Waits for the disk; any thread may call it."""
        try:
            self.epoch_file.persist()
        except StorageError as error:
            raise self._owner.refuse(self.topic_partition, error) from error

    # -- truncating

    def truncate_to(self, offset: int) -> None:
        """Remove the batch that contains `offset`, and all later batches. Waits for the disk.
        Raises BrokerError KAFKA_STORAGE_ERROR."""
        self._check_usable()
        if offset >= self.log_end_offset:
            self.epoch_file.remove_unrecorded(self.log_end_offset)
            return
        if offset <= self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        with self._cutting(lookup.end_without(self.segments, offset)):
            self.segments.truncate(offset, self.config.index_interval_bytes)
            end = self.log_end_offset
            self._durability.truncated(end)
            self.epoch_file.truncate_end(end)
            self._snapshots.keep(self.segments.bases, end)
            self.producers = lookup.rebuild_producers(
                self.segments, self._snapshots, end, self.producers.last_seen_ms
            )
            self.log_start_offset = min(self.log_start_offset, end)
        self.persist_epochs()
        self._owner.lower(self.topic_partition, end)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records. A damaged log is usable again afterwards. The next record gets
        `offset`. Waits for the disk."""
        if self._failure is not None:
            self._check_usable()
        with self._cutting(0):
            self._snapshots.keep((), -1)
            self.segments.start_over(offset, self._unreachable, aside=self.damage is not None)
            self._durability.restart(offset)
            self._unreachable = ()
            self.damage = None
            self.producers = ProducerState()
            self.epoch_file.clear()
            self.log_start_offset = offset
        self.persist_epochs()
        self._owner.lower(self.topic_partition, 0)

    @contextlib.contextmanager
    def _cutting(self, offset: int) -> Iterator[None]:
        """Return a context for a truncation to `offset`: flushes in other threads wait."""
        with self.changes.noted(self.topic_partition), self._durability.at_most(offset):
            self._owner.lower(self.topic_partition, offset)
            self._segment_roll.room = NO_ROOM
            with self._durability.syncing:
                try:
                    yield
                except (StorageError, CorruptionError) as error:
                    raise self.fail(StorageError(str(error))) from error

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start offset to `offset`. The change survives a restart once the
        checkpoints are written. Raises BrokerError OFFSET_OUT_OF_RANGE if `offset` is above the log
        end offset."""
        if offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epoch_file.truncate_start(offset)
            self.on_start_moved()
        self.changes.note(self.topic_partition)

    def delete_expired(self, now_ms: int, high_watermark: int, *, by_age: bool = True) -> int:
        """Delete the segments below the log start offset and, with `by_age`, the expired segments.
        Return the number of deleted segments. Their files remain until `remove_doomed`."""
        if self._failure is not None or self.damage is not None or self.segments.are_pinned:
            return 0
        segments = self.segments.all
        try:
            count = expired(
                [SegmentFacts(s.next_offset, s.size, s.retention_timestamp) for s in segments],
                self.config,
                now_ms=now_ms,
                log_start_offset=self.log_start_offset,
                high_watermark=high_watermark,
                by_age=by_age,
            )
            if not count:
                return 0
            if count == len(segments):
                # A full disk may lack space for the indexes of a segment that is deleted at once.
                self._start_segment(self.log_end_offset, now_ms, seals=False)
            self.segments.remove(segments[:count], now_ms + self.config.file_delete_delay_ms)
        except StorageError as error:
            raise self.fail(error) from error
        self.advance_log_start(max(self.log_start_offset, self.segments.first.base_offset))
        return count

    def remove_doomed(self, now_ms: int) -> None:
        """Remove the files of segments whose deletion delay has passed. Waits for the disk."""
        try:
            if self._failure is None:
                self.segments.remove_doomed(now_ms)
        except StorageError as error:
            self.fail(error)

    # -- making durable

    def needs_flush(self, now_ms: int) -> bool:
        """Return whether flush.messages or flush.ms require a flush now."""
        return self._durability.is_due(self.log_end_offset, self.config, now_ms)

    @property
    def has_closed_unflushed(self) -> bool:
        """Whether closed segments have records above the recovery point."""
        return self.recovery_point < self.segments.active.base_offset

    def flush(self, *, closed_only: bool = False, now_ms: int | None = None) -> None:
        """Make all appended records durable; with `closed_only`, only those in closed segments.
        Waits for the disk. Any thread may call this method. Raises BrokerError KAFKA_STORAGE_ERROR.
        The log is then unusable, unless the disk was full."""
        with self._making_durable():
            self._durability.flush(self.segments, self.epoch_file, closed_only, now_ms)

    def close(self) -> None:
        """Close the files. Unless the log has failed or is damaged, first make it durable.
        Idempotent. Raises the errors of `flush`."""
        if self._failure is None and self.damage is None:
            producers = self._snapshots, self.producers
            with self._making_durable():
                self._durability.settle(self.segments, self.epoch_file, *producers)
        self.segments.close()

    @contextlib.contextmanager
    def _making_durable(self) -> Iterator[None]:
        with self.changes.noted(self.topic_partition), self._durability.syncing:
            self._check_usable()
            try:
                yield
            except DiskFull as error:
                raise self._owner.refuse(self.topic_partition, error) from error
            except StorageError as error:
                raise self.fail(error) from error
