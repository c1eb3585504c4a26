"""The last offset of each key, for the log cleaner, in Python. `_key_table.pxi` does the same in
Cython: change both together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer
from pybroker.records._pure import (
    INT32_BITS,
    INT64_BITS,
    check_count,
    put_varint,
    read_varint,
    record_bounds,
)

_DIGEST_BYTES: Final = 16
_SECRET_BYTES: Final = 16
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


class _Keyed(NamedTuple):
    """A record in the decompressed records of a batch: the positions of its first byte, of the byte
    after its timestamp delta, and of the byte after the record."""

    start: int
    after_time: int
    end: int
    time_delta: int
    offset: int
    key: Buffer | None
    has_value: bool


class KeyTable:
    """Implements `key_table.Table`."""

    ENTRY_BYTES: Final = 160
    """The memory of one dictionary entry (a digest and an offset), in bytes. It was measured with
    CPython 3.11 in a dictionary that is two thirds full, and rounded up."""
    RECORDS_PER_SLICE: Final = 256
    """The number of records that take about 2 ms."""

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes) -> None:
        slots = max(memory_bytes // self.ENTRY_BYTES, 2)
        self.capacity = max(1, min(int(slots * load_factor), slots - 1))
        self._offsets: dict[bytes, int] = {}
        if len(secret) != _SECRET_BYTES:
            raise ValueError(f"the secret has {len(secret)} bytes, expected {_SECRET_BYTES}")
        self._secret = secret

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        return len(self._offsets) * self.ENTRY_BYTES

    def put(self, payload: Buffer, position: int, record_count: int, base_offset: int) -> int:
        offsets, capacity = self._offsets, self.capacity
        for record in _records(payload, position, record_count, base_offset):
            position = record.end
            if record.key is None:
                continue
            digest = self._digest(record.key)
            if len(offsets) >= capacity and digest not in offsets:
                return -1
            offsets[digest] = record.offset
        return position

    def select(
        self,
        payload: Buffer,
        position: int,
        record_count: int,
        base_offset: int,
        drops_tombstones: bool,
    ) -> tuple[int, int, bool, int, bytes | None]:
        kept = []
        for record in _records(payload, position, record_count, base_offset):
            position = record.end
            if record.key is None or (drops_tombstones and not record.has_value):
                continue
            if record.offset >= self._offsets.get(self._digest(record.key), -1):
                kept.append(record)
        latest = max((each.time_delta for each in kept), default=0)
        records = None
        if len(kept) < record_count:
            records = b"".join(payload[each.start : each.end] for each in kept)
        has_tombstone = any(not each.has_value for each in kept)
        return position, len(kept), has_tombstone, latest, records

    def _digest(self, key: Buffer) -> bytes:
        return hashlib.blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()


def shift_times(payload: Buffer, record_count: int, shift: int) -> bytes:
    output = bytearray()
    end = 0
    for record in _records(payload, 0, record_count, 0):
        end = record.end
        delta = record.time_delta + shift
        if not _INT64_MIN <= delta <= _INT64_MAX:
            raise CorruptionError(f"timestamp delta {record.time_delta} + {shift} exceeds 64 bits")
        body = bytearray(1)
        put_varint(body, delta)
        body += payload[record.after_time : end]
        put_varint(output, len(body))
        output += body
    if end != len(payload):
        raise CorruptionError(f"{len(payload) - end} bytes follow the last record, expected 0")
    return bytes(output)


def _records(data: Buffer, position: int, record_count: int, base_offset: int) -> Iterator[_Keyed]:
    if not 0 <= position <= len(data):
        raise ValueError(f"position is {position}, expected 0 to {len(data)}")
    check_count(record_count, len(data) - position)
    try:
        for _ in range(record_count):
            record = _record(data, position, base_offset)
            yield record
            position = record.end
    except IndexError:
        raise CorruptionError(
            f"incomplete record near byte {position}: the data ends at byte {len(data)}"
        ) from None


def _record(data: Buffer, start: int, base_offset: int) -> _Keyed:
    position, end = record_bounds(data, start)
    time_delta, after_time = read_varint(data, position, INT64_BITS)
    offset_delta, position = read_varint(data, after_time, INT32_BITS)
    key_length, position = _length(data, position, end)
    key = None
    if key_length >= 0:
        key, position = data[position : position + key_length], position + key_length
    value_length, _ = _length(data, position, end)
    offset = base_offset + offset_delta
    if base_offset < 0 or not 0 <= offset <= _INT64_MAX:
        raise CorruptionError(f"offset {base_offset} + {offset_delta} is outside 0 to 2^63 - 1")
    return _Keyed(start, after_time, end, time_delta, offset, key, value_length >= 0)


def _length(data: Buffer, position: int, end: int) -> tuple[int, int]:
    length, position = read_varint(data, position, INT32_BITS)
    if position > end or not -1 <= length <= end - position:
        raise CorruptionError(
            f"length of a key or value is {length}, expected -1 (null) or 0 to {end - position},"
            " the bytes left in the record"
        )
    return length, position


def put_batches(table: KeyTable, data: Buffer, position: int, first_offset: int) -> tuple[int, int]:
    """Implements `key_table.PutBatches`."""
    return position, 0


def select_batches(
    table: KeyTable,
    data: Buffer,
    position: int,
    now_ms: int,
    output: bytearray | memoryview,
    length: int,
) -> tuple[int, int, list[tuple[int, int, int, int]]]:
    """Implements `key_table.SelectBatches`."""
    return position, length, []
