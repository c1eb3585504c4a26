"""Decodes records into columns with NumPy, without the compiled module. `_pure` decodes small,
damaged and unusual batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pybroker.ports import Buffer
from pybroker.records._pure import RECORD_BYTES_MIN, check_count, read_records

_INT32_BITS: Final = 32
_INT64_BITS: Final = 64
_INT64_MAX: Final = 2**63 - 1
_MS_MAX: Final = _INT64_MAX // 1000
_HEADERS_MAX: Final = 32
"""The maximum number of headers in a record; `_pure` decodes a batch that has a record with more
headers."""
_PADDING: Final = bytes(16)
"""Zero bytes that are appended to the encoded records, so that a varint that begins near the end
can be read without a check for the end."""

_ONE: Final = np.uint64(1)
_OF_ONE_BYTE: Final = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(0x80)], np.int64)
"""Maps each varint of one byte (0 to 0x7F) to the number that it encodes by zig-zag."""

_Numbers = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


class _Wanted(NamedTuple):
    """The columns and the records that the caller asked for: the records with offset deltas in
    [first_delta, end_delta)."""

    headers: bool
    keys: bool
    values: bool
    first_delta: int = 0
    end_delta: int = 0


class _Batch(NamedTuple):
    """The parameters of `_pure.read_records` that come from a batch header."""

    record_count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    append_time: int | None


class _Entries(NamedTuple):
    """Entries of a binary column: the length of each entry (-1 for null), and all bytes, joined."""

    lengths: _Numbers
    data: bytes

    @classmethod
    def of(cls, entries: Sequence[bytes | None]) -> Self:
        lengths = [-1 if entry is None else len(entry) for entry in entries]
        return cls(np.array(lengths, np.int64), b"".join(filter(None, entries)))


class _Headers(NamedTuple):
    """Names and values of the headers of several records. `counts` has the number of headers of
    each record."""

    counts: _Numbers
    names: _Entries
    values: _Entries


class _Rows(NamedTuple):
    """The requested records of one batch. Timestamps are in ms since 1970. A column that the caller
    did not ask for is None."""

    offsets: _Numbers
    timestamps: _Numbers
    keys: _Entries | None
    values: _Entries | None
    headers: _Headers | None


class _Fields(NamedTuple):
    """The byte position and the length (-1 for null) of one field in each record of a batch."""

    positions: _Numbers
    lengths: _Numbers

    def cut(self, data: bytes, chosen: Any) -> _Entries:
        lengths = self.lengths[chosen]
        starts = self.positions[chosen]
        ends = starts + np.maximum(lengths, 0)
        pieces = zip(starts.tolist(), ends.tolist(), strict=True)
        return _Entries(lengths, b"".join([data[start:end] for start, end in pieces]))


class _HeaderFields(NamedTuple):
    """The headers of all records of a batch: the positions and lengths of their names and values.
    `records` has, for each header, the index of its record."""

    records: _Numbers
    names: _Fields
    values: _Fields

    def cut(self, data: bytes, counts: _Numbers, kept: slice) -> _Headers:
        """Return the headers of the records in the slice `kept`. `data` has the encoded records,
        `counts` the number of headers of each record."""
        chosen = slice(*np.searchsorted(self.records, (kept.start, kept.stop)).tolist())
        names = self.names.cut(data, chosen)
        if not names.data.isascii():
            positions = np.cumsum(names.lengths).tolist()
            names = _Entries.of(
                [
                    names.data[end - length : end].decode(errors="replace").encode()
                    for end, length in zip(positions, names.lengths.tolist(), strict=True)
                ]
            )
        return _Headers(counts[kept], names, self.values.cut(data, chosen))


class _UnusualError(Exception):
    """The batch is damaged, or has rare values, such as more than _HEADERS_MAX headers in one
    record. This module leaves the batch to `_pure`, which decodes it or raises CorruptionError."""


class ColumnStore:
    """The implementation of `columns.Store` with NumPy."""

    few_records = 40
    """The record count below which decoding without NumPy is faster."""

    def __init__(self, *, headers: bool, keys: bool, values: bool) -> None:
        self._wanted = _Wanted(headers, keys, values)
        self._batches: list[_Rows] = []
        self._types: list[int] = []
        self.rows = self.size = self.weight = 0

    def add(
        self,
        payload: Buffer,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        timestamp_type: int,
        first_delta: int,
        end_delta: int,
    ) -> int:
        check_count(record_count, len(payload))
        batch = _Batch(record_count, base_offset, last_offset_delta, base_timestamp, append_time)
        wanted = self._wanted._replace(first_delta=first_delta, end_delta=end_delta)
        rows = None if record_count < self.few_records else _read_usual(payload, batch, wanted)
        if rows is None:
            rows = _read_one_by_one(bytes(payload), batch, wanted)
        added = len(rows.offsets)
        if added:
            self._batches.append(rows)
            self._types.append(timestamp_type)
            self.rows += added
            entries, size = _extent(rows)
            self.size += size
            self.weight += added + entries + size
        return added

    def finish(self) -> tuple[Any, ...]:
        batches, types = self._batches, self._types
        counts = [len(each.offsets) for each in batches]
        timestamps = np.clip(_joined([each.timestamps for each in batches]), -_MS_MAX, _MS_MAX)
        stored = (
            self.rows,
            _buffer(_joined([each.offsets for each in batches])),
            _buffer(timestamps * 1000),
            _buffer(np.repeat(np.array(types, np.int32), counts)),
            _column([each.keys for each in batches]) if self._wanted.keys else None,
            _column([each.values for each in batches]) if self._wanted.values else None,
            _header_columns([each.headers for each in batches]) if self._wanted.headers else None,
        )
        self._batches, self._types = [], []
        self.rows = self.size = self.weight = 0
        return stored


def _extent(rows: _Rows) -> tuple[int, int]:
    """Return two sums over the binary columns of `rows`: the number of entries, and the number of
    bytes."""
    found = [rows.keys, rows.values]
    if rows.headers is not None:
        found += [rows.headers.names, rows.headers.values]
    kept = [entries for entries in found if entries is not None]
    return sum(len(entries.lengths) for entries in kept), sum(len(entries.data) for entries in kept)


# Reading


def _read_usual(payload: Buffer, batch: _Batch, wanted: _Wanted) -> _Rows | None:
    """Return the requested rows of the batch. Return None if `_pure` must decode the batch (see
    `_UnusualError`)."""
    try:
        return _read(payload, batch, wanted)
    except (_UnusualError, IndexError):
        return None


def _read(payload: Buffer, batch: _Batch, wanted: _Wanted) -> _Rows:
    data = b"".join((payload, _PADDING))
    array = np.frombuffer(data, np.uint8)
    starts = np.array(_starts(data, batch.record_count), np.int64)
    lengths, at = _numbers(array, starts, _INT32_BITS)
    ends = at + lengths
    _expect((lengths >= RECORD_BYTES_MIN - 1).all())
    _expect(np.array_equal(np.append(0, ends), np.append(starts, len(payload))))
    time_deltas, at = _numbers(array, at + 1, _INT64_BITS)
    deltas, at = _numbers(array, at, _INT32_BITS)
    keys, at = _fields(array, at, ends)
    values, at = _fields(array, at, ends)
    header_counts, at = _numbers(array, at, _INT32_BITS)
    headers = _header_fields(array, at, ends, header_counts)
    offsets, timestamps = _fixed(batch, deltas, time_deltas)
    first, end = np.searchsorted(deltas, (wanted.first_delta, wanted.end_delta)).tolist()
    kept = slice(first, max(first, end))
    return _Rows(
        offsets[kept],
        timestamps[kept],
        keys.cut(data, kept) if wanted.keys else None,
        values.cut(data, kept) if wanted.values else None,
        headers.cut(data, header_counts, kept) if wanted.headers else None,
    )


def _expect(is_usual: Any) -> None:
    if not is_usual:
        raise _UnusualError


def _starts(data: bytes, count: int) -> list[int]:
    """Return the position of each of the `count` records. The lengths of the records are not
    checked."""
    found = []
    position = 0
    for _ in range(count):
        found.append(position)
        low = data[position]
        if low < 0x80:
            position += 1 + (low >> 1)
            continue
        high = data[position + 1]
        if high < 0x80:  # nearly all records of more than 63 bytes
            position += 2 + (high << 6 | (low & 0x7F) >> 1)
        else:
            position = _end_of_long(data, position)
    return found


def _end_of_long(data: bytes, position: int) -> int:
    """Return the end of the record that begins at `position`. Call this only if the record's length
    field, a varint, takes up three bytes or more."""
    raw = shift = 0
    byte = 0x80
    while byte >= 0x80:
        _expect(shift < _INT32_BITS)
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        position += 1
        shift += 7
    return position + (raw >> 1)


def _numbers(array: _Bytes, at: _Numbers, bits: int) -> tuple[_Numbers, _Numbers]:
    """Decode the zig-zag varints of at most `bits` bits at the positions `at`. Return the numbers,
    and the positions after the varints."""
    byte = array.take(at)
    at = at + 1
    longer = (byte > 0x7F).nonzero()[0]
    if not len(longer):
        return _OF_ONE_BYTE.take(byte), at
    raw = (byte & 0x7F).astype(np.uint64)
    shift = 7
    while len(longer):
        _expect(shift < bits)
        byte = array.take(at[longer])
        low = byte & 0x7F
        if shift + 7 > bits:
            _expect(not (low >> (bits - shift)).any())
        raw[longer] |= low.astype(np.uint64) << np.uint64(shift)
        at[longer] += 1
        longer = longer[byte > 0x7F]
        shift += 7
    return (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64), at


def _fields(array: _Bytes, at: _Numbers, ends: _Numbers) -> tuple[_Fields, _Numbers]:
    """Decode the byte fields, such as keys, at the positions `at`. Return the fields, and the
    positions after them. Raises _UnusualError if a field ends after its record (`ends`)."""
    lengths, at = _numbers(array, at, _INT32_BITS)
    behind = at + np.maximum(lengths, 0)
    _expect((lengths >= -1).all() and (behind <= ends).all())
    return _Fields(at, lengths), behind


def _header_fields(array: _Bytes, at: _Numbers, ends: _Numbers, counts: _Numbers) -> _HeaderFields:
    """Return the headers of all records, sorted by record. For each record, `at` has the position
    of its first header, `ends` the end of the record, and `counts` the number of its headers."""
    _expect((counts >= 0).all() and (counts <= _HEADERS_MAX).all())
    at = at.copy()
    rows = counts.nonzero()[0]
    found = []
    number = 0
    while len(rows):
        names, behind = _fields(array, at[rows], ends[rows])
        values, behind = _fields(array, behind, ends[rows])
        _expect((names.lengths >= 0).all())
        found.append(np.stack((rows, *names, *values)))
        at[rows] = behind
        number += 1
        rows = rows[counts[rows] > number]
    _expect((at == ends).all())
    records, *fields = np.concatenate(found, axis=1) if found else np.empty((5, 0), np.int64)
    order = np.argsort(records, kind="stable")
    names_at, name_lengths, values_at, value_lengths = (field[order] for field in fields)
    return _HeaderFields(
        records[order], _Fields(names_at, name_lengths), _Fields(values_at, value_lengths)
    )


def _fixed(batch: _Batch, deltas: _Numbers, time_deltas: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return the offset and the timestamp of each record."""
    if not len(deltas):
        return deltas, time_deltas
    last = int(deltas[-1])
    _expect(deltas[0] >= 0 and (deltas[1:] > deltas[:-1]).all() and last <= batch.last_offset_delta)
    _expect(batch.base_offset + last <= _INT64_MAX)
    if batch.append_time is not None:
        timestamps = np.full(len(deltas), batch.append_time, np.int64)
    else:
        base = batch.base_timestamp
        _expect(base + int(time_deltas.min()) >= -_INT64_MAX)
        _expect(base + int(time_deltas.max()) <= _INT64_MAX)
        timestamps = time_deltas + base
    return deltas + batch.base_offset, timestamps


def _read_one_by_one(data: bytes, batch: _Batch, wanted: _Wanted) -> _Rows:
    """Return the requested rows of the batch, decoded by `_pure`. Raises CorruptionError."""
    records = [
        record
        for record in read_records(data, *batch, None, tuple)
        if wanted.first_delta <= record[0] - batch.base_offset < wanted.end_delta
    ]
    headers = [header for record in records for header in record[4]]
    return _Rows(
        np.array([record[0] for record in records], np.int64),
        np.array([record[1] for record in records], np.int64),
        _Entries.of([record[2] for record in records]) if wanted.keys else None,
        _Entries.of([record[3] for record in records]) if wanted.values else None,
        _Headers(
            np.array([len(record[4]) for record in records], np.int64),
            _Entries.of([name.encode() for name, _ in headers]),
            _Entries.of([value for _, value in headers]),
        )
        if wanted.headers
        else None,
    )


# Giving out


def _column(parts: Sequence[_Entries | None]) -> tuple[Buffer, Buffer, Buffer | None, int]:
    there = [part for part in parts if part is not None]
    lengths = _joined([part.lengths for part in there])
    is_null = lengths < 0
    nulls = int(is_null.sum())
    return (
        _list_offsets(np.maximum(lengths, 0)),
        b"".join([part.data for part in there]),
        _bitmap(~is_null) if nulls else None,
        nulls,
    )


def _header_columns(parts: Sequence[_Headers | None]) -> tuple[Any, ...]:
    there = [part for part in parts if part is not None]
    counts = _joined([part.counts for part in there])
    nulls = int((counts == 0).sum())
    return (
        _list_offsets(counts),
        _bitmap(counts > 0) if nulls else None,
        nulls,
        _column([part.names for part in there]),
        _column([part.values for part in there]),
    )


def _joined(parts: Sequence[_Numbers]) -> _Numbers:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _list_offsets(lengths: _Numbers) -> Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return _buffer(offsets)


def _bitmap(bits: npt.NDArray[np.bool_]) -> Buffer:
    return _buffer(np.packbits(bits, bitorder="little"))


def _buffer(array: npt.NDArray[Any]) -> Buffer:
    return array.tobytes()
