"""Conversion of columns to rows, for comparisons. It asserts that columns follow Arrow's rules."""

from __future__ import annotations

import itertools
import struct
from typing import cast

from pybroker.ports import Buffer
from pybroker.records.columns import BinaryColumn, Columns
from pybroker.records.record import Headers, Record

MICROSECONDS_MAX = (2**63 - 1) // 1000 * 1000

Row = tuple[int, int, int, bytes | None, bytes | None, Headers]
"""Offset, microseconds, timestamp type, key, value, headers."""


def row_of(record: Record) -> Row:
    """Return the row that columns must contain for a record."""
    microseconds = max(-MICROSECONDS_MAX, min(record.timestamp * 1000, MICROSECONDS_MAX))
    kind = int(record.timestamp_type)
    return (record.offset, microseconds, kind, record.key, record.value, record.headers)


def numbers(data: Buffer, kind: str, count: int) -> list[int]:
    """Return all numbers in the buffer, which must have exactly `count` numbers."""
    layout = struct.Struct(f"<{count}{kind}")
    assert len(data) == layout.size
    return list(layout.unpack(data))


def is_valid(validity: Buffer | None, count: int) -> list[bool]:
    if validity is None:
        return [True] * count
    bits = int.from_bytes(bytes(validity), "little")
    assert len(validity) == (count + 7) // 8
    assert bits >> count == 0, "bits behind the last entry"
    return [bool(bits >> index & 1) for index in range(count)]


def entries(column: BinaryColumn, count: int) -> list[bytes | None]:
    offsets = numbers(column.offsets, "i", count + 1)
    valid = is_valid(column.validity, count)
    assert column.nulls == valid.count(False)
    assert (column.validity is None) == (column.nulls == 0)
    assert (offsets[0], offsets[-1]) == (0, len(column.data))
    data = bytes(column.data)
    found = zip(valid, offsets[:-1], offsets[1:], strict=True)
    return [data[start:end] if there else None for there, start, end in found]


def rows_of(columns: Columns) -> list[Row]:
    """Return the rows of columns, which must include keys, values and headers."""
    rows = columns.rows
    assert columns.keys is not None
    assert columns.values is not None
    assert columns.headers is not None
    lists = numbers(columns.headers.offsets, "i", rows + 1)
    valid = is_valid(columns.headers.validity, rows)
    assert valid == [end > start for start, end in itertools.pairwise(lists)]
    assert columns.headers.nulls == valid.count(False)
    names = entries(columns.headers.names, lists[-1])
    assert None not in names
    values = entries(columns.headers.values, lists[-1])
    pairs = [(cast(bytes, n).decode(), v) for n, v in zip(names, values, strict=True)]
    return list(
        zip(
            numbers(columns.offsets, "q", rows),
            numbers(columns.timestamps, "q", rows),
            numbers(columns.timestamp_types, "i", rows),
            entries(columns.keys, rows),
            entries(columns.values, rows),
            [tuple(pairs[start:end]) for start, end in itertools.pairwise(lists)],
            strict=True,
        )
    )
