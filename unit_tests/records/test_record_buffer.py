"""Tests of the buffer of encoded records, by both implementations."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import kafka.partitioner.default as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.records._pure_record_buffer import RecordBuffer
from pybroker.records.batch import TimestampType
from pybroker.records.loops import read_records
from pybroker.records.record import Record
from unit_tests.records.vocabulary import NOW_MS

UNLIMITED = 1 << 40
ONE_BYTE_RECORD = 8
"""The size of a record without a key and with a value of one byte."""
INT64_MAX = 2**63 - 1

small = st.none() | st.binary(max_size=40)


def implementation(name: str) -> ModuleType:
    try:
        module = importlib.import_module(f"pybroker.records.{name}")
    except ImportError:
        pytest.skip("needs the compiled module: python setup.py build_ext --inplace")
    if not hasattr(module, "RecordBuffer"):
        pytest.skip("needs a newer compiled module: python setup.py build_ext --inplace")
    return module


@pytest.fixture(params=["_pure_record_buffer", "_speedups"])
def buffers(request: pytest.FixtureRequest) -> ModuleType:
    return implementation(request.param)


def records_in(buffer: RecordBuffer) -> list[Record]:
    return read_records(
        bytes(buffer.encoded()), buffer.count, 0, buffer.count - 1, buffer.base_timestamp, None,
        TimestampType.CREATE_TIME, Record,
    )  # fmt: skip


def test_a_buffer_knows_its_records(buffers: ModuleType) -> None:
    buffer = buffers.RecordBuffer()
    assert (buffer.count, buffer.size, buffer.base_timestamp, buffer.max_timestamp) == (
        0,
        0,
        -1,
        -1,
    )
    headers = (("a", b"1"), ("b", None))
    assert buffer.append(NOW_MS, b"k", b"v", headers, UNLIMITED) == 0
    assert buffer.append(NOW_MS + 5, None, bytearray(b"w"), (), UNLIMITED) == 1
    assert buffer.append(NOW_MS - 5, memoryview(b"x"), None, (), UNLIMITED) == 2
    assert (buffer.count, buffer.base_timestamp, buffer.max_timestamp) == (3, NOW_MS, NOW_MS + 5)
    assert buffer.size == len(buffer.encoded())
    assert [tuple(record)[:5] for record in records_in(buffer)] == [
        (0, NOW_MS, b"k", b"v", headers),
        (1, NOW_MS + 5, None, b"w", ()),
        (2, NOW_MS - 5, b"x", None, ()),
    ]
    buffer.release()
    assert (buffer.count, buffer.size, buffer.max_timestamp) == (3, 0, NOW_MS + 5)


def test_a_record_beyond_the_limit_is_not_appended(buffers: ModuleType) -> None:
    buffer = buffers.RecordBuffer()
    limit = 2 * ONE_BYTE_RECORD
    assert buffer.append(0, None, b"a", (), limit) == 0
    assert not buffer.full
    assert buffer.append(0, None, b"bb", (), limit) == -1
    assert buffer.append(0, None, b"b", (), limit) == 1
    assert buffer.full
    assert buffer.append(0, None, b"c", (), limit) == -1
    assert [record.value for record in records_in(buffer)] == [b"a", b"b"]


def test_a_first_record_may_exceed_the_limit(buffers: ModuleType) -> None:
    buffer = buffers.RecordBuffer()
    assert buffer.append(0, None, b"a" * 100, (), -61) == 0
    assert buffer.full


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ((-2, None, b"", ()), ValueError, "timestamp is -2, expected -1 or ms since 1970"),
        ((INT64_MAX, None, b"", ()), ValueError, "may exceed that of the batch"),
        ((0, "k", b"", ()), TypeError, "the key of a record must be bytes, not str"),
        ((0, None, 1, ()), TypeError, "the value of a record must be bytes, not int"),
        ((0, None, b"", [("h", "v")]), TypeError, "the header h of a record must be bytes"),
        ((0, None, b"", [(1, b"v")]), TypeError, "a header name must be str, not int"),
        ((0, None, b"", [("\ud800", b"v")]), ValueError, "surrogates not allowed"),
    ],
)
def test_a_record_that_cannot_be_encoded_changes_nothing(
    buffers: ModuleType, fields: tuple[Any, ...], kind: type[Exception], text: str
) -> None:
    buffer = buffers.RecordBuffer()
    buffer.append(-1, b"k", b"first", (), UNLIMITED)
    before = bytes(buffer.encoded())
    with pytest.raises(kind, match=text):
        buffer.append(*fields, UNLIMITED)
    assert (buffer.count, bytes(buffer.encoded())) == (1, before)
    assert buffer.append(0, None, b"next", (), UNLIMITED) == 1


def test_values_become_bytes_and_are_measured(buffers: ModuleType) -> None:
    values: list[Any] = [b"abc", bytearray(b"de"), memoryview(b""), None]
    keys: list[Any] = [None, b"key", bytearray(b"k"), None]
    assert buffers.record_bytes(values, keys) == (9, 5)
    assert values == [b"abc", b"de", b"", None]
    assert [type(item) for item in keys[1:3]] == [bytes, bytes]
    assert buffers.record_bytes([], None) == (0, 0)


@pytest.mark.parametrize(
    ("values", "keys", "kind", "text"),
    [
        ([b"", "text"], None, TypeError, "the value 1 of a record must be bytes, not str"),
        ([b"", b""], [b"", 7], TypeError, "the key 1 of a record must be bytes, not int"),
        ([b""], [], ValueError, "0 keys for 1 values, expected a key for each"),
    ],
)
def test_other_types_are_refused(
    buffers: ModuleType, values: list[Any], keys: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        buffers.record_bytes(values, keys)


def test_many_records_stop_at_a_missing_buffer_a_limit_or_the_end_of_the_room(
    buffers: ModuleType,
) -> None:
    values = [b"a", b"b", b"c"]
    places: list[int] = []
    args = (values, None, None, NOW_MS, 0, 1)
    assert buffers.append_records([None, None], *args, 100, 100, places) == (0, 1, 0)
    buffer = buffers.RecordBuffer()
    full = 2 * ONE_BYTE_RECORD
    assert buffers.append_records([None, buffer], *args, full, 100, places) == (2, 1, full)
    assert places == [1, 1]
    assert [record.value for record in records_in(buffer)] == [b"a", b"b"]
    again = buffers.RecordBuffer()
    assert buffers.append_records([None, again], *args, 100, 36, places) == (0, 1, 0)
    assert buffers.append_records([None, again], *args, 100, 37, places) == (1, 1, ONE_BYTE_RECORD)
    rest = (values, None, None, NOW_MS, 1, 1)
    assert buffers.append_records([None, again], *rest, 100, 100, places) == (3, 1, full)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_partition_without_a_place_is_an_error(buffers: ModuleType, number: int) -> None:
    with pytest.raises(IndexError, match=f"partition {number} was chosen, expected 0 to 1"):
        buffers.append_records([None, None], [b""], None, [number], NOW_MS, 0, 0, 100, 100, [])


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(small, small, st.none() | st.integers(0, 3)), max_size=40),
    keyed=st.booleans(),
    is_chosen=st.booleans(),
    partitions=st.integers(1, 4),
    limit=st.integers(0, 300),
    room=st.integers(0, 2_000),
)
def test_both_implementations_append_the_same_records(
    rows: list[tuple[bytes | None, bytes | None, int | None]],
    keyed: bool,
    is_chosen: bool,
    partitions: int,
    limit: int,
    room: int,
) -> None:
    values = [value for _, value, _ in rows]
    keys = [key for key, _, _ in rows] if keyed else None
    wishes = [None if number is None else number % partitions for _, _, number in rows]
    chosen = wishes if is_chosen else None
    seen = []
    for name in ("_pure_record_buffer", "_speedups"):
        module = implementation(name)
        made = [module.RecordBuffer() for _ in range(partitions)]
        places: list[int] = []
        reached = module.append_records(
            made, values, keys, chosen, NOW_MS, 0, partitions - 1, limit, room, places
        )
        seen.append((reached, places, [bytes(each.encoded()) for each in made]))
        assert reached[2] == sum(each.size for each in made) <= room
        assert all(each.size <= limit or each.count == 1 for each in made)
        if is_chosen:
            pairs = zip(wishes, places, strict=False)
            assert all(wish in (None, place) for wish, place in pairs)
    assert seen[0] == seen[1]


@settings(max_examples=300)
@given(st.binary(max_size=64))
def test_murmur2_is_that_of_another_client(key: bytes) -> None:
    for name in ("_pure_record_buffer", "_speedups"):
        assert implementation(name).murmur2(key) == oracle.murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # the vectors of the Java client's own test of its hash
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_known_keys(buffers: ModuleType, key: bytes, signed: int) -> None:
    assert buffers.murmur2(key) == signed & 0xFFFFFFFF
