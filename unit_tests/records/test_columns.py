"""Tests of records as columns: both implementations return the records, or raise the errors, of
`decode_records`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.ports import Buffer
from pybroker.records import columns as columns_module
from pybroker.records.batch import (
    HEADER_SIZE,
    TimestampType,
    read_header,
    restamp_log_append_time,
    stamp,
)
from pybroker.records.columns import ColumnBuilder
from pybroker.records.compression import Codec
from pybroker.records.record import decode_records
from unit_tests.records.rows import Row, entries, row_of, rows_of
from unit_tests.records.test_loops import (
    INT64_MAX,
    MALFORMED,
    damaged_payloads,
    records,
)
from unit_tests.records.vocabulary import (
    LIMIT,
    NOW_MS,
    TRICKY,
    Fields,
    around,
    batch_of,
    changed,
    record_bytes,
)

FORMS = ("_numpy_columns", "_numpy_columns, few records", "_speedups")
"""NumPy's form leaves batches of few records, as nearly all here are, to the pure loops; the first
does not."""
EVERYTHING = (-1, 2**63)

MakeBuilder = Callable[..., ColumnBuilder]


def made_by(form: str) -> MakeBuilder:
    """Return a factory of builders with one implementation. Skips the test if the implementation is
    not compiled."""
    name, _, few = form.partition(", ")
    try:
        module = importlib.import_module(f"pybroker.records.{name}")
    except ImportError:
        pytest.skip("needs the compiled module: python setup.py build_ext --inplace")

    def make(**columns: bool) -> ColumnBuilder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns_module, "_IMPLEMENTATIONS", (module.__name__,))
            builder = ColumnBuilder(**columns)
        if name == "_numpy_columns" and not few:
            cast(Any, builder._store).few_records = 0
        return builder

    return make


@pytest.fixture(params=FORMS)
def make(request: pytest.FixtureRequest) -> MakeBuilder:
    return made_by(request.param)


def add(
    builder: ColumnBuilder, batch: Buffer, offsets: tuple[int, int] = EVERYTHING, limit: int = LIMIT
) -> int:
    return builder.add(batch, read_header(batch), *offsets, decompressed_bytes_max=limit)


def expected(batch: Buffer, offsets: tuple[int, int] = EVERYTHING) -> list[Row]:
    return [
        row_of(item)
        for item in decode_records(batch, decompressed_bytes_max=LIMIT)
        if offsets[0] <= item.offset < offsets[1]
    ]


def read(make: MakeBuilder, batch: Buffer, offsets: tuple[int, int] = EVERYTHING) -> list[Row]:
    builder = make(headers=True)
    count = add(builder, batch, offsets)
    assert builder.rows == count
    columns = builder.finish()
    assert columns.rows == count
    return rows_of(columns)


def test_both_column_implementations_are_tested(
    make: MakeBuilder, request: pytest.FixtureRequest
) -> None:
    form = request.node.callspec.params["make"].partition(",")[0]
    assert type(make()._store).__module__ == f"pybroker.records.{form}"


def test_compiled_columns_are_preferred() -> None:
    made_by("_speedups")
    assert type(ColumnBuilder()._store).__module__ == "pybroker.records._speedups"


@pytest.mark.parametrize("missing", [None, ModuleType("pybroker.records._speedups")])
def test_numpy_columns_are_used_without_compiled_columns(
    monkeypatch: pytest.MonkeyPatch, missing: ModuleType | None
) -> None:
    """The empty module stands for an older build of `_speedups`, without columns."""
    monkeypatch.setitem(sys.modules, "pybroker.records._speedups", missing)
    assert type(ColumnBuilder()._store).__module__ == "pybroker.records._numpy_columns"


def test_error_without_implementation_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_speedups", "_numpy_columns"):
        monkeypatch.setitem(sys.modules, f"pybroker.records.{name}", None)
    with pytest.raises(ImportError, match=r"pip install 'pybroker\[arrow\]'"):
        ColumnBuilder()


@pytest.mark.parametrize("codec", Codec)
def test_columns_contain_the_values_of_the_records(make: MakeBuilder, codec: Codec) -> None:
    batch = batch_of(*TRICKY, codec=codec)
    stamp(batch, 0, 1_000_000, 5)
    rows = read(make, batch)
    assert rows == expected(batch)
    assert rows[1] == (1_000_001, (NOW_MS - 12345) * 1000, 0, None, b"earlier than the first", ())


@pytest.mark.parametrize("codec", Codec)
def test_rows_of_a_log_append_time_batch_have_the_broker_timestamp(
    make: MakeBuilder, codec: Codec
) -> None:
    batch = batch_of(*TRICKY, codec=codec)
    restamp_log_append_time(batch, 0, len(batch), 42)
    rows = read(make, batch)
    assert rows == expected(batch)
    assert {row[1:3] for row in rows} == {(42_000, int(TimestampType.LOG_APPEND_TIME))}


def test_batches_of_both_timestamp_types_are_combined(make: MakeBuilder) -> None:
    created, appended = batch_of(*TRICKY[:3]), batch_of(*TRICKY[3:])
    stamp(appended, 0, 3, 0)
    restamp_log_append_time(appended, 0, len(appended), 42)
    builder = make(headers=True)
    assert add(builder, created) == 3
    assert add(builder, appended) == len(TRICKY) - 3
    assert rows_of(builder.finish()) == expected(created) + expected(appended)


@pytest.mark.parametrize("codec", Codec)
def test_many_batches_become_one_set_of_columns(make: MakeBuilder, codec: Codec) -> None:
    builder = make(headers=True)
    wanted: list[Row] = []
    for start in range(0, 4000, 500):
        fields: list[Fields] = [
            (NOW_MS + n, b"%d" % n if n % 3 else None, b"v" * (n % 300), (("h", b"x"),) * (n % 3))
            for n in range(start, start + 500)
        ]
        batch = batch_of(*fields, codec=codec)
        stamp(batch, 0, start, 0)
        assert add(builder, batch) == 500
        wanted += expected(batch)
    assert builder.rows == 4000
    assert builder.size == sum(
        len(key or b"") + len(value or b"") + 2 * len(headers) for *_, key, value, headers in wanted
    )
    assert rows_of(builder.finish()) == wanted


def test_records_outside_the_offset_range_are_left_out(make: MakeBuilder) -> None:
    payload = b"".join(record_bytes(0, delta, -1, -1, 0) for delta in (3, 7, 8))
    batch = around(payload, 3, base_offset=100, last_offset_delta=9)
    for first in (*range(98, 112), 0, -5, 2**63):
        for end in (*range(98, 112), 0, -5, 2**63):
            rows = read(make, batch, (first, end))
            assert [row[0] for row in rows] == [
                offset for offset in (103, 107, 108) if first <= offset < end
            ]


def test_offset_range_applies_to_every_column(make: MakeBuilder) -> None:
    batch = batch_of(*TRICKY)
    for first in range(len(TRICKY) + 1):
        assert read(make, batch, (first, 5)) == expected(batch, (first, 5))


def test_unwanted_columns_are_none(make: MakeBuilder) -> None:
    batch = batch_of(*TRICKY)
    whole = make(headers=True)
    add(whole, batch)
    full = whole.finish()
    for keys in (True, False):
        for values in (True, False):
            builder = make(keys=keys, values=values)
            assert add(builder, batch) == len(TRICKY)
            columns = builder.finish()
            assert bytes(columns.offsets) == bytes(full.offsets)
            assert columns.headers is None
            assert (columns.keys is None, columns.values is None) == (not keys, not values)
            if columns.keys is not None and full.keys is not None:
                assert entries(columns.keys, len(TRICKY)) == entries(full.keys, len(TRICKY))
            if columns.values is not None and full.values is not None:
                assert entries(columns.values, len(TRICKY)) == entries(full.values, len(TRICKY))


def test_empty_builder_returns_empty_columns(make: MakeBuilder) -> None:
    builder = make(headers=True)
    assert rows_of(builder.finish()) == []
    assert (builder.rows, builder.size) == (0, 0)


@pytest.mark.parametrize("attributes", [*Codec, 0x50])
def test_batch_emptied_by_compaction_has_no_records(make: MakeBuilder, attributes: int) -> None:
    assert read(make, around(b"", 0, attributes=attributes, last_offset_delta=9)) == []


def test_finished_columns_are_unchanged_by_later_batches(make: MakeBuilder) -> None:
    builder = make(headers=True)
    first, second = batch_of(*TRICKY), batch_of(*reversed(TRICKY))
    add(builder, first)
    before = builder.finish()
    add(builder, second)
    assert rows_of(before) == expected(first)
    assert rows_of(builder.finish()) == expected(second)
    assert rows_of(builder.finish()) == []
    assert rows_of(before) == expected(first)


def test_the_batch_may_be_a_view_and_bytes_may_follow_it(make: MakeBuilder) -> None:
    batch = batch_of(*TRICKY)
    for buffer in (bytes(batch), batch, memoryview(batch + b"\xff" * 20), batch + b"\xff"):
        assert read(make, buffer) == expected(batch)


def test_a_header_name_that_is_not_utf_8_is_shown_as_java_shows_it(make: MakeBuilder) -> None:
    ugly = b"\xff\xfea\xed\xa0\x80"
    payload = record_bytes(0, 0, -1, -1, 2, 1, b"n", -1, len(ugly), ugly, 1, b"v")
    batch = around(payload)
    builder = make(headers=True)
    assert add(builder, batch_of(*TRICKY)) == len(TRICKY)
    assert add(builder, batch) == 1
    assert add(builder, batch_of(*TRICKY)) == len(TRICKY)
    good = expected(batch_of(*TRICKY))
    assert rows_of(builder.finish()) == [*good, *expected(batch), *good]
    assert expected(batch)[0][5][1] == (ugly.decode(errors="replace"), b"v")


@pytest.mark.parametrize(
    "ms", [0, -1, INT64_MAX, INT64_MAX // 1000, INT64_MAX // 1000 + 1, 1 - 2**63]
)
def test_timestamps_beyond_64_bit_microseconds_are_clamped(make: MakeBuilder, ms: int) -> None:
    batch = around(record_bytes(0, 0, -1, -1, 0), base_timestamp=ms)
    assert read(make, batch) == expected(batch)


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("headers", [True, False])
def test_malformed_records_are_refused_and_nothing_is_added(
    make: MakeBuilder, case: str, headers: bool
) -> None:
    payload, count = MALFORMED[case]
    assert_refused(make, around(payload, count), headers=headers)


DAMAGE = {
    "key": record_bytes(0, 20, 50, b"k", -1, 0),
    "value": record_bytes(0, 20, 1, b"k", 50, b"v", 0),
    "offset": record_bytes(0, 19, 1, b"k", 1, b"v", 0),
    "header count": record_bytes(0, 20, 1, b"k", 1, b"v", 9),
    "header name": record_bytes(0, 20, 1, b"k", 1, b"v", 1, -1, -1),
    "header value": record_bytes(0, 20, 1, b"k", 1, b"v", 1, 1, b"\xff", 9),
    "rest": record_bytes(0, 20, 1, b"k", 1, b"v", 1, 1, b"n", -1, b"?"),
    "length": record_bytes(0, 20, 1, b"k", 1, b"v", 0, length=100),
}


@pytest.mark.parametrize("case", DAMAGE)
@pytest.mark.parametrize("headers", [True, False])
def test_valid_records_of_a_damaged_batch_are_not_kept(
    make: MakeBuilder, case: str, headers: bool
) -> None:
    good = [record_bytes(0, n, -1 if n % 2 else 0, 2, b"v?", 1, 1, b"n", -1) for n in range(20)]
    assert len(expected(around(b"".join(good), 20))) == 20
    assert_refused(make, around(b"".join([*good, DAMAGE[case]]), 21), headers=headers)


def assert_refused(make: MakeBuilder, batch: Buffer, *, headers: bool = True) -> None:
    """Check that the batch is refused as by `decode_records`, whatever the wanted offsets, and that
    earlier rows stay."""
    with pytest.raises((CorruptionError, BrokerError)) as wanted:
        decode_records(batch, decompressed_bytes_max=LIMIT)
    builder = make(headers=headers)
    before = batch_of(*TRICKY[:5])
    add(builder, before)
    size = builder.size
    for offsets in (EVERYTHING, (0, 0), (1, 2)):
        with pytest.raises((CorruptionError, BrokerError)) as caught:
            add(builder, batch, offsets)
        assert type(caught.value) is type(wanted.value)
        assert getattr(caught.value, "code", None) == getattr(wanted.value, "code", None)
        assert (builder.rows, builder.size) == (5, size)
    add(builder, before)
    columns = builder.finish()
    assert columns.keys is not None
    assert entries(columns.keys, 10) == [row[3] for row in expected(before)] * 2
    if headers:
        assert rows_of(columns) == expected(before) * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_length": 40000},
        {"attributes": 5},
        {"base_offset": INT64_MAX},
        *({"attributes": codec} for codec in (1, 2, 3, 4)),
    ],
)
def test_batch_headers_that_contradict_the_records_are_rejected(
    make: MakeBuilder, changes: dict[str, int]
) -> None:
    assert_refused(make, changed(batch_of(*TRICKY), **changes))


@pytest.mark.parametrize("codec", Codec)
def test_records_beyond_the_size_limit_are_not_decompressed(
    make: MakeBuilder, codec: Codec
) -> None:
    batch = batch_of((NOW_MS, None, bytes(2000), ()), codec=codec)
    builder = make()
    assert_refused_as_too_large(builder, batch, 2000)
    assert add(builder, batch, limit=2100) == 1


def assert_refused_as_too_large(builder: ColumnBuilder, batch: Buffer, limit: int) -> None:
    with pytest.raises(BrokerError) as caught:
        add(builder, batch, limit=limit)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_columns_beyond_arrow_offsets_are_rejected(
    make: MakeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test lowers the limit. Each batch has 2,009 bytes of records, and invalid header names
    may make its columns larger."""
    monkeypatch.setattr(columns_module, "INT32_MAX", 3 * 2009 + 4050)
    batch = batch_of((NOW_MS, None, bytes(2000), ()))
    builder = make()
    assert add(builder, batch) + add(builder, batch) + add(builder, batch) == 3
    with pytest.raises(ValueError, match=r"6000 bytes in 3 rows, .* call finish\(\) before"):
        add(builder, batch)
    assert builder.finish().rows == 3
    assert add(builder, batch) == 1


def test_entries_count_towards_the_column_limit(
    make: MakeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of((NOW_MS, None, None, (("", None),) * 100))
    builder = make(headers=True)
    add(builder, batch)
    assert builder.size == 0
    assert builder._store.weight == 1 + 2 + 200
    monkeypatch.setattr(columns_module, "INT32_MAX", 3 * (len(batch) - HEADER_SIZE) + 202)
    with pytest.raises(ValueError, match="0 bytes in 1 rows"):
        add(builder, batch)


def test_batch_beyond_arrow_offsets_is_rejected(
    make: MakeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_module, "ENCODED_BYTES_MAX", 5000)
    assert_refused_as_too_large(make(), batch_of((NOW_MS, None, bytes(6000), ())), LIMIT)


def outcome(make: MakeBuilder, batch: Buffer, offsets: tuple[int, int]) -> object:
    """Return the rows, or the type of the raised error."""
    try:
        return read(make, batch, offsets)
    except (CorruptionError, BrokerError) as error:
        return type(error)


def oracle(batch: Buffer, offsets: tuple[int, int]) -> object:
    try:
        return expected(batch, offsets)
    except (CorruptionError, BrokerError) as error:
        return type(error)


ranges = st.tuples(st.integers(-1, 25), st.integers(-1, 25))


@pytest.mark.parametrize("form", FORMS)
@given(fields=records, codec=st.sampled_from(Codec), offsets=ranges)
@settings(max_examples=80, deadline=None)
def test_columns_of_any_records_equal_decode_records(
    form: str, fields: list[Fields], codec: Codec, offsets: tuple[int, int]
) -> None:
    batch = batch_of(*fields, codec=codec)
    assert read(made_by(form), batch, offsets) == expected(batch, offsets)


@pytest.mark.parametrize("form", FORMS)
@given(
    payload=damaged_payloads(),
    count=st.integers(-1, 6),
    base=st.integers(-1, INT64_MAX),
    attributes=st.sampled_from([0, 0, 8, 1, 4]),
    offsets=ranges,
)
@settings(max_examples=400, deadline=None)
def test_columns_of_any_bytes_equal_decode_records(
    form: str, payload: bytes, count: int, base: int, attributes: int, offsets: tuple[int, int]
) -> None:
    batch = around(payload, count, base_timestamp=base, attributes=attributes, last_offset_delta=9)
    assert outcome(made_by(form), batch, offsets) == oracle(batch, offsets)
