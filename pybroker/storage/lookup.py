"""Lookups in the segments of a log. The functions may raise StorageError and CorruptionError; those
decorated with `reported` raise BrokerError instead."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Concatenate, Final, ParamSpec, TypeVar

from pybroker.errors import BrokerError, CorruptionError, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader, crc_matches, iter_headers
from pybroker.records.control import EndTransaction, parse_control
from pybroker.records.record import decode_records, record_times
from pybroker.storage.producer_state import ProducerState
from pybroker.storage.reading import NotCached
from pybroker.storage.segment import SCRUB_BYTES, Segment
from pybroker.storage.segments import Segments
from pybroker.storage.snapshot_files import SnapshotFiles
from pybroker.storage.txn_index import AbortedTransaction

Params = ParamSpec("Params")
Found = TypeVar("Found")

DECOMPRESSED_BYTES_MAX: Final = 32 * 1024**2
"""The largest size after decompression of a batch whose records the broker decodes. Clients limit a
batch to about a megabyte before compression. A far larger batch is an attack on the broker's
memory."""


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """A decorator for functions that read a log: converts StorageError and CorruptionError to
    BrokerError KAFKA_STORAGE_ERROR."""
    try:
        yield
    except (StorageError, CorruptionError) as error:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def unreadable(error: StorageError | CorruptionError) -> BrokerError:
    """Convert the failure of a read to the error for the reader: CORRUPT_MESSAGE for damaged bytes,
    KAFKA_STORAGE_ERROR for a failed disk."""
    is_corrupt = isinstance(error, CorruptionError)
    code = ErrorCode.CORRUPT_MESSAGE if is_corrupt else ErrorCode.KAFKA_STORAGE_ERROR
    return BrokerError(code, str(error))


def out_of_range(key: TopicPartition, offset: int, start: int, end: int) -> BrokerError:
    """Return the error for a request with an `offset` outside the log from `start` to `end`."""
    return BrokerError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{key}: expected an offset from {start} (log start) to {end} (log end), got {offset}",
    )


def marker_of(batch: Buffer, header: BatchHeader) -> EndTransaction | None:
    """Return the transaction marker in a control batch; None for any other batch."""
    if not header.is_control:
        return None
    records = decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    return parse_control(records[0]) if records else None


def checked_batches(
    data: Buffer, expected: int, epoch: int, epoch_max: int
) -> list[tuple[int, BatchHeader]]:
    """Return position and header of each whole batch in the leader's `data`. Raises BrokerError
    CORRUPT_MESSAGE if a checksum is wrong, a batch overlaps the batch before it, or a leader epoch
    decreases or exceeds `epoch_max`. The first batch must have a base offset of at least
    `expected`, and a leader epoch of at least `epoch`."""
    try:
        batches = list(iter_headers(data))
    except CorruptionError as error:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    for position, header in batches:
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise BrokerError(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch of the leader begins at offset {header.base_offset},"
                f" expected {expected} or more",
            )
        if not crc_matches(data, position, header.size):
            raise BrokerError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the leader's batch at offset {header.base_offset} has a wrong checksum",
            )
        if not epoch <= header.leader_epoch <= epoch_max:
            raise BrokerError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the leader's batch at offset {header.base_offset} has leader epoch"
                f" {header.leader_epoch}, expected {epoch} to {epoch_max}",
            )
        expected, epoch = header.next_offset, header.leader_epoch
    return batches


def repeated(
    search: Callable[Concatenate[Segments, Params], Found],
) -> Callable[Concatenate[Segments, Params], Found]:
    """Decorate a function that reads segments: call it again if a segment was closed during the
    call."""

    @functools.wraps(search)
    def until_unchanged(
        segments: Segments, /, *args: Params.args, **kwargs: Params.kwargs
    ) -> Found:
        while True:
            seen = segments.all
            try:
                return search(segments, *args, **kwargs)
            except (StorageError, CorruptionError):
                if seen == segments.all:
                    raise

    return until_unchanged


@repeated
def read(
    segments: Segments,
    offset: int,
    max_bytes: int,
    upper_offset: int,
    at_least_one_batch: bool,
    cached_only: bool,
) -> Buffer | None:
    """Return whole batches of one segment, as described in `Log.read`."""
    try:
        for segment in segments.from_offset(offset):
            if segment.base_offset >= upper_offset:
                break
            data = segment.read(
                offset,
                max_bytes,
                upper_offset,
                at_least_one_batch=at_least_one_batch,
                cached_only=cached_only,
            )
            if data is not None:
                return data
    except NotCached:
        return None
    return b""


@reported()
@repeated
def offset_for_timestamp(
    segments: Segments, timestamp_ms: int, log_start_offset: int, upper_offset: int
) -> tuple[int, int, int] | None:
    """Implement `Log.offset_for_timestamp` for the records from `log_start_offset` on."""
    for segment in segments.from_offset(log_start_offset):
        if segment.base_offset >= upper_offset:
            break
        if segment.largest_timestamp()[0] < timestamp_ms:
            continue
        start = segment.position_before_timestamp(timestamp_ms)
        for position, header in segment.headers(start, segment.size):
            if header.max_timestamp < timestamp_ms or header.last_offset < log_start_offset:
                continue
            for offset, timestamp in _times(segment, position, header):
                if timestamp >= timestamp_ms and offset >= log_start_offset:
                    if offset >= upper_offset:
                        return None
                    return offset, timestamp, header.leader_epoch
    return None


@reported()
@repeated
def offset_of_max_timestamp(
    segments: Segments, log_start_offset: int, upper_offset: int
) -> tuple[int, int, int] | None:
    """Implement `Log.offset_of_max_timestamp` for the records from `log_start_offset` on."""
    best: tuple[int, Segment, int, BatchHeader] | None = None
    for segment in segments.from_offset(log_start_offset):
        if segment.base_offset >= upper_offset:
            break
        largest, last_offset = segment.largest_timestamp()
        if largest < 0 or (best is not None and largest <= best[0]):
            continue
        start = 0
        if log_start_offset <= segment.base_offset and last_offset < upper_offset:
            start = segment.locate(last_offset) or 0
        for position, header in segment.headers(start, segment.size):
            if header.base_offset >= upper_offset:
                break
            if header.last_offset < log_start_offset:
                continue
            if header.max_timestamp > (-1 if best is None else best[0]):
                best = (header.max_timestamp, segment, position, header)
            if header.max_timestamp == largest:
                break
    if best is None:
        return None
    largest, segment, position, header = best
    for offset, timestamp in _times(segment, position, header):
        if timestamp == largest and log_start_offset <= offset < upper_offset:
            return offset, timestamp, header.leader_epoch
    return None


def _times(segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of each record in the batch. For a batch too large to decompress,
    yield only its base offset and largest timestamp."""
    batch = segment.file.pread(position, header.size)
    try:
        yield from record_times(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    except BrokerError as error:
        if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
            raise
        yield header.base_offset, header.max_timestamp


@reported()
def aborted_transactions(
    segments: Segments, from_offset: int, to_offset: int, cached_only: bool
) -> list[AbortedTransaction]:
    """Return the aborted transactions with records in [from_offset, to_offset), ordered by first
    offset. With `cached_only` raises NotCached if the lookup would wait for the disk."""
    found = []
    for entry in _entries(segments, from_offset, cached_only):
        if entry.first_offset < to_offset:
            found.append(entry)
        if entry.last_stable_offset >= to_offset:
            break  # all later transactions begin at this last stable offset or above
    return sorted(found, key=lambda each: each.first_offset)


def _entries(
    segments: Segments, from_offset: int, cached_only: bool
) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions whose marker is at `from_offset` or later, in marker order."""
    for segment in segments.from_offset(from_offset):
        if not segment.transactions.is_missing:
            yield from segment.transactions.overlapping(from_offset, cached_only=cached_only)


def end_without(segments: Segments, offset: int) -> int:
    """Return the log end offset after a removal of the batch that contains `offset` and of all
    later batches."""
    segment = segments.from_offset(offset)[0]
    try:
        position = segment.locate(offset)
        if position is None:
            return offset
        return min(offset, next(segment.headers(position, segment.size))[1].base_offset)
    except (StorageError, CorruptionError):
        return offset  # the truncation reports the damage


def rebuild_producers(
    segments: Segments, snapshots: SnapshotFiles, snapshot_max: int, seen_ms: int
) -> ProducerState:
    """Return the producer state at the log end. It is built from the newest snapshot at or below
    `snapshot_max`, and from the batches after that snapshot. `seen_ms` counts as the append time of
    these batches. Also restores transaction index entries after a crash."""
    first, end = segments.first.base_offset, segments.active.next_offset
    for segment in segments.all:
        if segment.transactions.is_in_doubt:
            snapshot_max = min(snapshot_max, segment.base_offset)
    loaded = snapshots.load(min(end, max(first, snapshot_max)), first)
    start, state = loaded if loaded is not None else (first, ProducerState())
    state.unstable_since_ms = state.marker_ms = seen_ms
    if start < end:
        for segment in segments.from_offset(start):
            aborted = [*_replay(state, segment, start, seen_ms)]
            if segment.transactions.is_in_doubt:
                segment.transactions.confirm(aborted)
            for entry in aborted:
                segment.transactions.add(entry)
    return state


def _replay(
    state: ProducerState, segment: Segment, start: int, seen_ms: int
) -> Iterator[AbortedTransaction]:
    """Apply the segment's batches to `state`, beginning at the offset `start`. Yield a transaction
    index entry for each abort marker in these batches."""
    position = segment.locate(max(start, segment.base_offset))
    if position is None:
        return
    for place, header in segment.headers(position, segment.size, scan_bytes=SCRUB_BYTES):
        if header.producer_id >= 0:
            marker = None
            if header.is_control:
                marker = marker_of(segment.file.pread(place, header.size), header)
            completed = state.apply(header, header.base_offset, seen_ms, marker)
            if completed is not None and completed.aborted:
                yield state.aborted(completed)
