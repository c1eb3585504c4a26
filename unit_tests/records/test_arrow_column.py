"""Tests of the rows of a column in Arrow's layout, by both implementations."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.records import _pure_arrow_column, _pure_record_buffer
from unit_tests.records.vocabulary import NOW_MS, implementation

NAMES = ("_pure_arrow_column", "_speedups")
TYPES = (pyarrow.binary(), pyarrow.large_binary(), pyarrow.string(), pyarrow.large_string())


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return implementation(request.param)


def buffers_of(module: ModuleType) -> ModuleType:
    return _pure_record_buffer if module is _pure_arrow_column else module


def column_of(module: ModuleType, array: Any) -> Any:
    validity, offsets, data = array.buffers()
    offset_bytes = 8 if str(array.type).startswith("large") else 4
    return module.ArrowColumn(len(array), offsets, data, validity, array.offset, offset_bytes)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_rows_are_those_of_the_array(module: ModuleType, kind: Any) -> None:
    texts = [None, "", "a", "é" * 50, None, "b", "c", None, "d"]
    expected = [None if text is None else text.encode() for text in texts]
    array = pyarrow.array(texts, kind)
    assert list(column_of(module, array)) == expected
    assert list(column_of(module, array[3:7])) == expected[3:7]
    assert len(column_of(module, array[3:7])) == 4
    assert list(column_of(module, array[:0])) == []
    assert list(column_of(module, pyarrow.array([], kind))) == []
    assert list(column_of(module, pyarrow.array([None], kind))) == [None]


@pytest.mark.parametrize("index", [-1, 2, 2**40])
def test_row_outside_of_the_column_is_refused(module: ModuleType, index: int) -> None:
    with pytest.raises(IndexError, match=f"there is no row {index}: the column has 2"):
        column_of(module, pyarrow.array([b"a", b"b", b"c"])[:2])[index]


def test_buffers_must_hold_all_rows(module: ModuleType) -> None:
    offsets = struct.pack("=4i", 0, 1, 2, 3)
    assert list(module.ArrowColumn(3, offsets, b"abc", None, 0, 4)) == [b"a", b"b", b"c"]
    assert list(module.ArrowColumn(2, offsets, b"abc", None, 1, 4)) == [b"b", b"c"]
    for rows, first in ((4, 0), (3, 1), (1, 3), (1, 2**62), (2**62, 1)):
        with pytest.raises(ValueError, match="the column has 16 bytes of offsets, too few"):
            module.ArrowColumn(rows, offsets, b"abc", None, first, 4)
    with pytest.raises(ValueError, match="the column has 0 bytes of validity bits, too few"):
        module.ArrowColumn(3, offsets, b"abc", b"", 0, 4)
    for rows, first, offset_bytes in ((-1, 0, 4), (1, -1, 4), (1, 0, 2)):
        with pytest.raises(ValueError, match=f"rows={rows}, first={first} and offset_bytes="):
            module.ArrowColumn(rows, offsets, b"abc", None, first, offset_bytes)


@pytest.mark.parametrize("pair", [(0, 4), (-1, 2), (2, 1), (4, 4), (-(2**31), 2**31 - 1)])
@pytest.mark.parametrize(("offset_bytes", "form"), [(4, "=2i"), (8, "=2q")])
def test_bytes_outside_of_the_data_are_refused(
    module: ModuleType, pair: tuple[int, int], offset_bytes: int, form: str
) -> None:
    column = module.ArrowColumn(1, struct.pack(form, *pair), b"abc", None, 0, offset_bytes)
    with pytest.raises(ValueError, match=rf"row 0 of the column has the offsets {pair[0]} and"):
        column[0]
    with pytest.raises(ValueError, match="row 0 of the column"):
        buffers_of(module).record_bytes(column, None)
    buffer = buffers_of(module).RecordBuffer()
    with pytest.raises(ValueError, match="row 0 of the column"):
        buffers_of(module).append_records([buffer], column, None, None, 0, 0, 0, 99, 99, [])
    assert buffer.count == 0


def test_column_without_data_has_empty_rows(module: ModuleType) -> None:
    assert list(module.ArrowColumn(2, bytes(12), None, b"\1", 0, 4)) == [b"", None]


def test_columns_of_other_types_are_refused() -> None:
    compiled = implementation("_speedups")
    for columns in (((b"a",), None), ([b"a"], (b"k",))):
        with pytest.raises(TypeError, match="the column is a tuple, expected list or ArrowColumn"):
            compiled.record_bytes(*columns)
        with pytest.raises(TypeError, match="the column is a tuple, expected list or ArrowColumn"):
            compiled.append_records([None], *columns, None, 0, 0, 0, 99, 99, [])


def test_keys_and_values_must_be_equally_many(module: ModuleType) -> None:
    buffers = buffers_of(module)
    column = column_of(module, pyarrow.array([b"a", b"b"]))
    refusal = pytest.raises(ValueError, match="1 keys for 2 values, expected a key for each")
    with refusal:
        buffers.record_bytes(column, [b"k"])
    with refusal:
        buffers.append_records([None], column, [b"k"], None, 0, 0, 0, 99, 99, [])


cells = st.lists(st.tuples(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=5)))


@given(cells, st.booleans(), st.integers(0, 3))
def test_records_of_a_column_are_those_of_a_list(
    rows: list[tuple[bytes | None, bytes | None]], keyed: bool, start: int
) -> None:
    values, keys = [row[0] for row in rows], [row[1] for row in rows]
    start = min(start, len(rows))
    seen = []
    for name in NAMES:
        module = implementation(name)
        buffers = buffers_of(module)
        value_column = column_of(module, pyarrow.array(values, pyarrow.binary()))
        key_column = column_of(module, pyarrow.array(keys, pyarrow.large_binary()))
        for columns in ((values, keys), (value_column, key_column), (value_column, keys)):
            chosen = columns if keyed else (columns[0], None)
            made = [buffers.RecordBuffer() for _ in range(3)]
            places: list[int] = []
            found = buffers.append_records(
                made, *chosen, None, NOW_MS, start, 1, 200, 1_000, places
            )
            contents = [bytes(buffer.encoded()) for buffer in made]
            seen.append((found, places, contents, buffers.record_bytes(*chosen)))
    assert all(other == seen[0] for other in seen)
