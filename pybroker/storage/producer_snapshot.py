"""The format of a producer snapshot (`<offset>.snapshot`): the state of a partition's producers
before the record at that offset.

Big-endian: `i16 version 1, u32 CRC-32C of the following bytes, i32 count`, then for each producer
`i64 producer id, i16 epoch, i32 last sequence, i64 last offset, i32 offset delta, i64 timestamp,
i32 coordinator epoch, i64 first offset of the open transaction`; -1 means "none".

Kafka's format has the last batch of each producer. To distinguish a retry from a gap after a
restart, the broker needs the last five. The four earlier batches follow after the entries, where
Apache Kafka does not read: `4 bytes "pyB1", i32 count`, then `i64 producer id, i32 last sequence,
i64 last offset, i32 offset delta, i64 timestamp`, oldest first. The checksum covers them too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.model import NO_OFFSET
from pybroker.records.batch import NO_SEQUENCE
from pybroker.records.crc32c import checksum
from pybroker.storage.producer_state import ProducerEntry, RememberedBatch

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_EARLIER_MAGIC: Final = b"pyB1"
_EARLIER_HEAD: Final = struct.Struct(">4si")
_EARLIER: Final = struct.Struct(">qiqiq")
_CHECKED_POSITION: Final = 6


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of a snapshot file with the state of these producers."""
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
        earlier += [_EARLIER.pack(entry.producer_id, *batch) for batch in entry.batches[:-1]]
    checked = struct.pack(">i", len(rows)) + b"".join(rows)
    if earlier:
        checked += _EARLIER_HEAD.pack(_EARLIER_MAGIC, len(earlier)) + b"".join(earlier)
    return struct.pack(">hI", _VERSION, checksum(checked)) + checked


def decode(data: bytes, path: str) -> list[ProducerEntry]:
    """Return the state of each producer in the content `data` of a snapshot file. Raises
    CorruptionError, which names the file `path`, if `data` is damaged."""
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


def _earlier_batches(data: bytes, position: int) -> dict[int, tuple[RememberedBatch, ...]]:
    if len(data) - position < _EARLIER_HEAD.size:
        return {}
    magic, count = _EARLIER_HEAD.unpack_from(data, position)
    start = position + _EARLIER_HEAD.size
    end = start + count * _EARLIER.size
    if magic != _EARLIER_MAGIC or count < 0 or end > len(data):
        return {}
    batches: dict[int, tuple[RememberedBatch, ...]] = {}
    for producer_id, *fields in _EARLIER.iter_unpack(data[start:end]):
        batches[producer_id] = (*batches.get(producer_id, ()), RememberedBatch(*fields))
    return batches
