"""The format of a producer snapshot (`<offset>.snapshot`): the state of a partition's producers
before the record at that offset.

Big-endian: `i16 version 1, u32 CRC-32C of the following bytes, i32 count`, then for each producer
`i64 producer id, i16 epoch, i32 last sequence, i64 last offset, i32 offset delta, i64 timestamp,
i32 coordinator epoch, i64 first offset of the open transaction`; -1 means "none".

Then follow up to two sections that Apache Kafka does not read:

- The producers' earlier batches: `4 bytes "pyB1", i32 count`, then `i64 producer id, i32 last
  sequence, i64 last offset, i32 offset delta, i64 timestamp`, oldest first.
- The undecided transactions, whose marker may still be at or above the high watermark: `4 bytes
  "pyB2", i32 count`, then `i64 producer id, i64 first offset, i64 offset of the marker, i8 1 for an
  abort marker`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.model import NO_OFFSET
from pybroker.records.batch import NO_SEQUENCE
from pybroker.records.crc32c import checksum
from pybroker.storage.producer_state import CompletedTransaction, ProducerEntry, RememberedBatch

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_SECTION: Final = struct.Struct(">4si")
_EARLIER: Final = b"pyB1"
_UNDECIDED: Final = b"pyB2"
_ROWS: Final = {_EARLIER: struct.Struct(">qiqiq"), _UNDECIDED: struct.Struct(">qqq?")}
"""Magic of a section -> the layout of its rows."""
_CHECKED_POSITION: Final = 6


def encode(
    entries: Iterable[ProducerEntry], undecided: Iterable[CompletedTransaction] = ()
) -> bytes:
    """Return the content of a snapshot file. `undecided` are the transactions whose marker may
    still be at or above the high watermark."""
    rows = []
    earlier = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else RememberedBatch(NO_SEQUENCE, -1, 0, -1)
        rows.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.last_seen_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
        earlier += [(entry.producer_id, *batch) for batch in entry.batches[:-1]]
    checked = struct.pack(">i", len(rows)) + b"".join(rows)
    checked += _section(_EARLIER, earlier) + _section(_UNDECIDED, undecided)
    return struct.pack(">hI", _VERSION, checksum(checked)) + checked


def _section(magic: bytes, rows: Iterable[Iterable[object]]) -> bytes:
    packed = [_ROWS[magic].pack(*row) for row in rows]
    return _SECTION.pack(magic, len(packed)) + b"".join(packed) if packed else b""


def decode(data: bytes, path: str) -> list[ProducerEntry]:
    """Return the state of each producer in the content `data` of the snapshot file `path`. Raises
    CorruptionError if `data` is damaged."""
    if len(data) < _HEAD.size:
        raise CorruptionError(
            f"{path}: {len(data)} bytes are too short for a producer snapshot,"
            f" expected {_HEAD.size} or more"
        )
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptionError(f"{path}: version is {version}, expected {_VERSION}")
    if crc != checksum(data[_CHECKED_POSITION:]):
        raise CorruptionError(f"{path}: the checksum of the producer snapshot is wrong")
    end = _HEAD.size + count * _ENTRY.size
    if count < 0 or end > len(data):
        raise CorruptionError(f"{path}: {len(data)} bytes are too short for {count} entries")
    earlier = _earlier_batches(data, end)
    entries = []
    for row in _ENTRY.iter_unpack(data[_HEAD.size : end]):
        producer_id, epoch, sequence, last_offset, delta, timestamp, coordinator, first = row
        batches = earlier.get(producer_id, ())
        if sequence != NO_SEQUENCE:
            batches = (*batches, RememberedBatch(sequence, last_offset, delta, timestamp))
        entries.append(
            ProducerEntry(
                producer_id, epoch, batches, timestamp, coordinator, max(first, NO_OFFSET)
            )
        )
    return entries


def decode_undecided(data: bytes) -> list[CompletedTransaction]:
    """Return the transactions in the snapshot `data` whose marker may still be at or above the high
    watermark. `decode` must have accepted `data`."""
    (count,) = struct.unpack_from(">i", data, _CHECKED_POSITION)
    rows = _rows(data, _HEAD.size + count * _ENTRY.size, _UNDECIDED)
    return [CompletedTransaction._make(row) for row in rows]


def _earlier_batches(data: bytes, position: int) -> dict[int, tuple[RememberedBatch, ...]]:
    batches: dict[int, tuple[RememberedBatch, ...]] = {}
    for producer_id, *fields in _rows(data, position, _EARLIER):
        batches[producer_id] = (*batches.get(producer_id, ()), RememberedBatch(*fields))
    return batches


def _rows(data: bytes, position: int, wanted: bytes) -> Iterator[tuple[int, ...]]:
    """Yield the rows of the section `wanted`. The first section begins at `position`."""
    while len(data) - position >= _SECTION.size:
        magic, count = _SECTION.unpack_from(data, position)
        row = _ROWS.get(magic)
        start = position + _SECTION.size
        if row is None or count < 0 or start + count * row.size > len(data):
            return
        position = start + count * row.size
        if magic == wanted:
            yield from row.iter_unpack(data[start:position])
