"""The lines of Kafka's DumpLogSegments for the files beside a segment: offset index, time index,
aborted transactions and producer snapshot."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

from pybroker.errors import CorruptionError
from pybroker.records.crc32c import checksum
from pybroker.storage import producer_snapshot, txn_index
from pybroker.tools._cli import Failure
from pybroker.tools._dump_segments import (
    WHOLE,
    Complaints,
    LogFile,
    StoredBatch,
    absolute,
    base_offset,
)

SNAPSHOT_BYTES_MAX: Final = 256 * 1024**2
"""The largest producer snapshot that is read into memory: about six million producers."""

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_SNAPSHOT_VERSION: Final = 1
_TXN_VERSION: Final = 0
_CHUNK_ENTRIES: Final = 4096


class IndexView(NamedTuple):
    """The choices for printing an index. `sanity_only`: print only the result of the check that a
    broker makes when it starts. `verify_only`: only compare the index with the log.
    `max_message_size`: the maximum size (bytes) of the batch to which an entry points."""

    sanity_only: bool = False
    verify_only: bool = False
    max_message_size: int = 5 * 1024 * 1024


def dump_index(path: Path, view: IndexView, complaints: Complaints) -> None:
    """Print the entries of an offset index, and compare them with the segment's log file. Raises
    Failure, OSError."""
    base = base_offset(path)
    with _log_beside(path) as log:
        size = path.stat().st_size
        if size < _OFFSET_ENTRY.size:
            click.echo(f"{path} is empty.")
            return
        if view.sanity_only:
            _check_offset_index(path, base)
            click.echo(f"{path} passed sanity check.")
            return
        for offset, position in _offset_entries(path, base):
            last_offset = _last_offset_at(log, position, view.max_message_size, path)
            if last_offset != offset:
                pairs = complaints.mismatches.setdefault(absolute(path), [])
                pairs.append((offset, last_offset))
            if not view.verify_only:
                click.echo(f"offset: {offset} position: {position}")


def dump_time_index(path: Path, view: IndexView, complaints: Complaints) -> None:
    """Print the entries of a time index, and compare them with the segment's log file. Raises
    Failure, OSError."""
    base = base_offset(path)
    with _log_beside(path) as log:
        if view.sanity_only:
            _check_time_index(path, base)
            click.echo(f"{path} passed sanity check.")
            return
        positions = _Positions(path.with_suffix(".index"), base)
        previous = -1
        for timestamp, relative in _entries(path, _TIME_ENTRY, base):
            offset = base + relative
            _verify_time(
                log, positions.floor(offset), timestamp, offset, previous, path, complaints
            )
            if not view.verify_only:
                click.echo(f"timestamp: {timestamp} offset: {offset}")
            previous = timestamp


def _verify_time(
    log: LogFile,
    position: int,
    timestamp: int,
    offset: int,
    previous: int,
    path: Path,
    complaints: Complaints,
) -> None:
    name = absolute(path)
    batch = _batch_of(log, position, offset)
    last_offset = -1 if batch is None else log.last_offset(batch)
    if batch is None or last_offset != offset:
        complaints.not_found.setdefault(name, []).append((offset, last_offset))
        return
    largest = max((record.timestamp for record in log.records(batch)), default=-1)
    if largest != timestamp:
        complaints.time_mismatches.setdefault(name, []).append((timestamp, largest))
    if previous >= timestamp:
        complaints.time_disorder.setdefault(name, []).append((timestamp, previous))


def _batch_of(log: LogFile, position: int, offset: int) -> StoredBatch | None:
    """Return the first batch at or after `position` whose last offset is at least `offset`. Return
    None if there is no such batch."""
    for batch in log.batches(position, WHOLE):
        if log.last_offset(batch) >= offset:
            return batch
    return None


def dump_transactions(path: Path) -> None:
    """Print the aborted transactions of a segment (.txnindex). Raises Failure, OSError."""
    with path.open("rb") as stream:
        while data := stream.read(txn_index.ENTRY.size):
            if len(data) < txn_index.ENTRY.size:
                raise Failure(
                    f"{path}: the last entry has only {len(data)} of {txn_index.ENTRY.size} bytes"
                )
            version, producer_id, first, last, stable = txn_index.ENTRY.unpack(data)
            if version != _TXN_VERSION:
                raise Failure(
                    f"Unexpected aborted transaction version {version} in transaction index"
                    f" {path}, current version is {_TXN_VERSION}"
                )
            click.echo(
                f"version: {version} producerId: {producer_id} firstOffset: {first}"
                f" lastOffset: {last} lastStableOffset: {stable}"
            )


def dump_snapshot(path: Path) -> None:
    """Print a producer snapshot. If the snapshot is malformed, print the fault on standard error.
    Raises Failure if the file is too large. Raises OSError."""
    with path.open("rb") as stream:
        data = stream.read(SNAPSHOT_BYTES_MAX + 1)
    if len(data) > SNAPSHOT_BYTES_MAX:
        raise Failure(
            f"{path}: the file is larger than {SNAPSHOT_BYTES_MAX} bytes, the limit"
            " for a producer snapshot"
        )
    fault = _snapshot_fault(data)
    if fault is not None:
        click.echo(fault, err=True)
        return
    try:
        entries = producer_snapshot.decode(data, str(path))
    except CorruptionError as error:
        click.echo(f"Snapshot failed schema validation: {error}", err=True)
        return
    for entry in entries:
        first = entry.transaction_first_offset
        transaction = "OptionalLong.empty" if first < 0 else f"OptionalLong[{first}]"
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.epoch}"
            f" coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: {transaction}"
            f" lastTimestamp: {entry.last_seen_ms} "
        )
        if entry.batches:
            last = entry.batches[-1]
            line += (
                f"firstSequence: {last.first_sequence} lastSequence: {last.last_sequence}"
                f" lastOffset: {last.last_offset} offsetDelta: {last.offset_delta}"
                f" timestamp: {last.timestamp}"
            )
        click.echo(line)


def _snapshot_fault(data: bytes) -> str | None:
    """Return Kafka's message for a damaged snapshot, None for an intact one."""
    if len(data) < _SNAPSHOT_HEAD.size + 4:
        return f"Snapshot failed schema validation: {len(data)} bytes are too few for a snapshot"
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        return f"Snapshot contained an unknown file version {version}"
    computed = checksum(data[_SNAPSHOT_HEAD.size :])
    if crc != computed:
        return (
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {crc}."
            f" Computed crc: {computed}"
        )
    return None


# -- reading the entries of an index file


class _Positions:
    """Looks up offsets in an offset index, and finds their positions in the log. If the offsets
    ascend from call to call, the index is read only once."""

    def __init__(self, path: Path, base: int) -> None:
        self._entries = iter(_offset_entries(path, base)) if path.exists() else iter(())
        self._next = next(self._entries, None)
        self._asked = base
        self._position = 0
        self._path = path
        self._base = base

    def floor(self, offset: int) -> int:
        """Return the log position of the last index entry whose offset is at most `offset`. Return
        0 if there is no such entry."""
        if offset < self._asked:
            self.__init__(self._path, self._base)  # type: ignore[misc]
        self._asked = offset
        while self._next is not None and self._next[0] <= offset:
            self._position = self._next[1]
            self._next = next(self._entries, None)
        return self._position


def _offset_entries(path: Path, base: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, log position) for each entry of an offset index. `base` is the segment's base
    offset."""
    for relative, position in _entries(path, _OFFSET_ENTRY, base, offset_first=True):
        yield base + relative, position


def _entries(
    path: Path, layout: struct.Struct, base: int, *, offset_first: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield the entries of an index file, without the zeros that a running broker preallocates.
    `offset_first`: the first number of an entry is the offset, otherwise the second."""
    first = True
    with path.open("rb") as stream:
        while data := stream.read(layout.size * _CHUNK_ENTRIES):
            whole = len(data) // layout.size * layout.size
            for left, right in layout.iter_unpack(data[:whole]):
                if not first and (left if offset_first else right) == 0:
                    return
                first = False
                yield left, right


def _check_offset_index(path: Path, base: int) -> None:
    last = _last_entry(path, _OFFSET_ENTRY)
    if last is not None and last[0] < 0:
        raise Failure(
            f"Corrupt index found, index file ({absolute(path)}) has non-zero size but the last"
            f" offset is {base + last[0]} which is less than the base offset {base}"
        )
    size = path.stat().st_size
    if size % _OFFSET_ENTRY.size:
        raise Failure(
            f"Index file {absolute(path)} is corrupt, found {size} bytes which is neither positive"
            f" nor a multiple of {_OFFSET_ENTRY.size}"
        )


def _check_time_index(path: Path, base: int) -> None:
    first = next(_entries(path, _TIME_ENTRY, base), None)
    last = _last_entry(path, _TIME_ENTRY)
    found = f"Corrupt time index found, time index file ({absolute(path)}) has non-zero size but"
    if first is not None and last is not None and last[0] < first[0]:
        raise Failure(
            f"{found} the last timestamp is {last[0]} which is less than the first timestamp"
            f" {first[0]}"
        )
    if last is not None and last[1] < 0:
        raise Failure(
            f"{found} the last offset is {base + last[1]} which is less than the first offset"
            f" {base}"
        )
    size = path.stat().st_size
    if size % _TIME_ENTRY.size:
        raise Failure(
            f"Time index file ({absolute(path)}) is corrupt, found {size} bytes which is neither"
            f" positive nor a multiple of {_TIME_ENTRY.size}"
        )


def _last_entry(path: Path, layout: struct.Struct) -> tuple[int, int] | None:
    count = path.stat().st_size // layout.size
    if not count:
        return None
    with path.open("rb") as stream:
        stream.seek((count - 1) * layout.size)
        left, right = layout.unpack(stream.read(layout.size))
    return left, right


def _last_offset_at(log: LogFile, position: int, limit: int, path: Path) -> int:
    """Return the last offset of the batch at `position` in the log. Raises Failure if no complete
    batch of at most `limit` bytes begins there."""
    if not 0 <= position <= log.size:
        raise Failure(
            f"{path}: an entry has the position {position}, but the log has only {log.size} bytes"
        )
    batch = next(log.batches(position, limit), None)
    if batch is None:
        raise Failure(f"{path}: the log has no complete batch at position {position}")
    return log.last_offset(batch)


@contextmanager
def _log_beside(path: Path) -> Iterator[LogFile]:
    """Open the log file of the index's segment. Raises Failure if the log file is missing, OSError
    if the index is missing."""
    path.stat()
    beside = path.with_name(path.name.split(".")[0] + ".log")
    try:
        stream = beside.open("rb")
    except FileNotFoundError as error:
        raise Failure(f"{path}: the log file of this index is missing: {beside}") from error
    with stream:
        yield LogFile(beside, stream)
