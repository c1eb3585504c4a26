"""Tests of the records that a consumer returns, by both implementations: they equal the records
that are decoded at once, and damage is found before a record is returned."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import tracemalloc
import weakref
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import CorruptionError
from pybroker.records import consumed
from pybroker.records.batch import TimestampType, read_header, restamp_log_append_time, stamp
from pybroker.records.compression import Codec
from pybroker.records.consumed import SLICE_BYTES
from pybroker.records.record import decode_records, encoded_records
from unit_tests.records.test_loops import records
from unit_tests.records.vocabulary import (
    LIMIT,
    NOW_MS,
    TRICKY,
    Fields,
    around,
    batch_of,
    changed,
    decoded,
    record_bytes,
)

NAMES = ("_pure_consumed", "_speedups")
FIELDS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
    "leader_epoch",
)
Row = tuple[object, ...]


def module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"pybroker.records.{name}")
    except ImportError:
        return pytest.skip("needs the compiled module: python setup.py build_ext --inplace")


@pytest.fixture(params=NAMES)
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A test that takes this fixture runs once with each implementation."""
    found = module(request.param)
    monkeypatch.setattr(consumed, "BatchReader", found.BatchReader)
    return found


def slices(
    batch: bytes | bytearray, first_offset: int = 0, check_bytes: int = 0
) -> Iterator[list[consumed.ConsumerRecord]]:
    """Read a batch slice by slice. `check_bytes` above 0: check it first, in steps of this size."""
    header = read_header(batch)
    payload = encoded_records(bytes(batch), header, LIMIT)
    reader = consumed.batch_reader("t", 3, header, payload, first_offset)
    while check_bytes and not reader.check(check_bytes):
        assert not reader.done
    while not reader.done:
        yield reader.read()


def rows(found: Iterator[list[consumed.ConsumerRecord]]) -> list[Row]:
    return [tuple(getattr(one, name) for name in FIELDS) for part in found for one in part]


def expected(batch: bytes | bytearray, first_offset: int = 0) -> list[Row]:
    epoch = read_header(batch).leader_epoch
    return [
        ("t", 3, *one[:2], one.timestamp_type, one.key, one.value, one.headers, epoch)
        for one in decode_records(batch, decompressed_bytes_max=LIMIT)
        if one.offset >= first_offset
    ]


@settings(deadline=None)
@given(
    fields=records,
    codec=st.sampled_from(Codec),
    base=st.integers(0, 2**40),
    epoch=st.integers(-1, 100),
    appended=st.booleans(),
    skipped=st.integers(0, 25),
    check_bytes=st.sampled_from([0, 1, 100, 2**20]),
    name=st.sampled_from(NAMES),
)
def test_records_equal_those_decoded_at_once(
    fields: list[Fields],
    codec: Codec,
    base: int,
    epoch: int,
    appended: bool,
    skipped: int,
    check_bytes: int,
    name: str,
) -> None:
    batch = batch_of(*fields, codec=codec)
    stamp(batch, 0, base, epoch)
    if appended:
        restamp_log_append_time(batch, 0, len(batch), NOW_MS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumed, "BatchReader", module(name).BatchReader)
        assert rows(slices(batch, base + skipped, check_bytes)) == expected(batch, base + skipped)


def test_a_large_batch_is_read_in_slices(chosen: ModuleType) -> None:
    batch = batch_of(*[(NOW_MS + n, b"%d" % n, b"v" * 100, ()) for n in range(5_000)])
    parts = list(slices(batch, check_bytes=10_000))
    assert len(parts) > 3
    assert max(map(len, parts)) <= 1_000
    assert rows(iter(parts)) == expected(batch)


def test_a_record_larger_than_a_slice_has_a_slice_of_its_own(chosen: ModuleType) -> None:
    sizes = [10, SLICE_BYTES * 3, 10, 10]
    batch = batch_of(*[(NOW_MS, None, b"v" * size, ()) for size in sizes])
    assert rows(slices(batch, check_bytes=1)) == expected(batch)


def test_a_batch_without_records_has_none(chosen: ModuleType) -> None:
    assert rows(slices(around(b"", 0))) == []


DAMAGED = {
    "offset": record_bytes(0, 5, 1, b"k", 1, b"v", 0),
    "cut off": record_bytes(0, 0, 1, b"k", 1, b"v", 0)[:-1],
    "more bytes": record_bytes(0, 0, 1, b"k", 1, b"v", 0) + b"\0",
    "key": record_bytes(0, 0, 100, b"k", 1, b"v", 0),
    "negative length": record_bytes(0, 0, -2, b"", 1, b"v", 0),
    "header count": record_bytes(0, 0, 1, b"k", 1, b"v", 7),
    "null name": record_bytes(0, 0, 1, b"k", 1, b"v", 1, -1, b"", -1, b""),
    "rest": record_bytes(0, 0, 1, b"k", 1, b"v", 0, b"rest"),
}


@pytest.mark.parametrize("what", DAMAGED)
@pytest.mark.parametrize("check_bytes", [0, 1])
def test_damage_is_refused_as_in_eager_decoding(
    chosen: ModuleType, what: str, check_bytes: int
) -> None:
    first = record_bytes(0, 0, 1, b"k", 1, b"v", 0)
    good = record_bytes(0, 1, 1, b"k", 1, b"v", 0)
    for batch in (around(DAMAGED[what]), around(first + good + DAMAGED[what], 3)):
        with pytest.raises(CorruptionError) as eager:
            decoded(batch)
        with pytest.raises(CorruptionError) as found:
            list(slices(batch, check_bytes=check_bytes))
        assert str(found.value) == str(eager.value) or "bytes follow" in str(found.value)


def test_an_overflowing_time_or_offset_is_refused(chosen: ModuleType) -> None:
    batch = batch_of(*TRICKY[:2])
    for changes in ({"base_offset": 2**63 - 1}, {"base_timestamp": -(2**63)}):
        with pytest.raises(CorruptionError, match="exceeds 64 bits"):
            list(slices(changed(batch, **changes)))
    with pytest.raises(CorruptionError, match="record count"):
        list(slices(changed(batch, record_count=2**30)))


def record(chosen: ModuleType, **changes: object) -> consumed.ConsumerRecord:
    fields = dict(
        zip(
            FIELDS,
            ("t", 1, 2, 3, TimestampType.CREATE_TIME, b"k", None, (("h", b"x"),), 4),
            strict=True,
        )
    )
    found: consumed.ConsumerRecord = chosen.ConsumerRecord(**(fields | changes))
    return found


def test_a_record_is_a_frozen_value(chosen: ModuleType) -> None:
    one = record(chosen)
    assert one == record(chosen)
    assert hash(one) == hash(record(chosen))
    assert one != record(chosen, value=b"")
    fields: object = tuple(getattr(one, name) for name in FIELDS)
    assert one != fields
    assert repr(one) == (
        "ConsumerRecord(topic='t', partition=1, offset=2, timestamp=3,"
        " timestamp_type=<TimestampType.CREATE_TIME: 0>, key=b'k', value=None,"
        " headers=(('h', b'x'),), leader_epoch=4)"
    )
    for name in FIELDS:
        with pytest.raises(AttributeError):
            setattr(one, name, None)
    match one:
        case chosen.ConsumerRecord("t", 1, offset=2):
            pass
        case _:
            pytest.fail("the record does not match its fields")


@pytest.mark.parametrize("name", NAMES)
def test_a_read_record_equals_a_made_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = module(name)
    monkeypatch.setattr(consumed, "BatchReader", found.BatchReader)
    for part in slices(batch_of(*TRICKY)):
        for one, row in zip(part, expected(batch_of(*TRICKY)), strict=True):
            assert one == found.ConsumerRecord(*row)
            assert hash(one) == hash(found.ConsumerRecord(*row))
            assert repr(one) == repr(found.ConsumerRecord(*row))


def test_a_record_can_be_copied_and_pickled() -> None:
    (part,) = slices(batch_of(*TRICKY))
    for one in part:
        assert pickle.loads(pickle.dumps(one)) == one
        assert copy.copy(one) == copy.deepcopy(one) == one
    assert b"_speedups" not in pickle.dumps(part)
    assert b"_pure" not in pickle.dumps(part)


class Payload(bytearray):
    """A buffer whose end of life can be seen."""


def test_a_record_does_not_keep_the_fetched_bytes(chosen: ModuleType) -> None:
    batch = batch_of(*TRICKY)
    header = read_header(batch)
    payload = Payload(encoded_records(batch, header, LIMIT))
    gone = weakref.ref(payload)
    reader = consumed.batch_reader("t", 3, header, payload, 0)
    found = reader.read()
    del payload, reader
    gc.collect()
    assert gone() is None
    assert [one.value for one in found] == [one.value for one in decoded(batch)]


def test_a_record_that_was_looked_at_keeps_no_other_record(chosen: ModuleType) -> None:
    batch = batch_of(*[(NOW_MS, b"key", b"v" * 1_000, (("h", b"x"),)) for _ in range(50)])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = next(slices(batch))[7]
        assert kept.key == b"key"
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000
    assert kept.value == b"v" * 1_000
    assert kept.headers == (("h", b"x"),)


@pytest.mark.parametrize("name", NAMES)
def test_an_outline_has_the_end_and_the_epochs(name: str) -> None:
    outline = module(name).outline_batches
    data = bytearray()
    for base, epoch in ((2**40, 3), (2**40 + 2, 3), (2**40 + 4, 5), (2**40 + 6, -1)):
        batch = batch_of(*TRICKY[:2])
        stamp(batch, 0, base, epoch)
        data += batch
    end = 2**40 + 8
    assert outline(data, -1) == (end, [(3, 2**40), (5, end - 4), (-1, end - 2)])
    assert outline(memoryview(data)[:-1], end - 6) == (end - 2, [(3, end - 6), (5, end - 4)])
    assert outline(data, end) == (-1, [])
    assert outline(data[:60], 0) == outline(b"", 0) == (-1, [])
    for position, wrong in ((16, 1), (11, 0)):
        damaged = bytearray(data)
        damaged[len(data) // 2 + position] = wrong
        damaged[len(data) // 2 + 10] = 0 if position == 11 else damaged[len(data) // 2 + 10]
        with pytest.raises(CorruptionError, match=f"position {len(data) // 2}"):
            outline(damaged, -1)


@pytest.mark.parametrize("name", NAMES)
def test_slices_of_records_are_whole_records(name: str) -> None:
    batch = batch_of(*TRICKY)
    payload = encoded_records(batch, read_header(batch), LIMIT)
    for bytes_max in (1, 50, 9_000, 10**6):
        position = count = 0
        while count < len(TRICKY):
            position, found = module(name).record_slice(
                payload, position, len(TRICKY) - count, bytes_max
            )
            assert found > 0
            count += found
        assert (position, count) == (len(payload), len(TRICKY))
