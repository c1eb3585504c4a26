"""Tests of the records in a batch, by both implementations: they are decoded as they were
encoded, and damage is reported."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pybroker.records
from pybroker.errors import BrokerError, CorruptionError
from pybroker.records import loops as chosen_loops
from pybroker.records.batch import (
    HEADER_SIZE,
    TimestampType,
    crc_matches,
    read_header,
    restamp_log_append_time,
    stamp,
)
from pybroker.records.builder import BatchBuilder, pack_batch, record_size_max
from pybroker.records.compression import Codec
from pybroker.records.record import Record
from unit_tests.records.vocabulary import (
    IMPLEMENTATIONS,
    NOW_MS,
    TRICKY,
    around,
    batch_of,
    buffers_of,
    changed,
    decoded,
    fields_of,
    implementation,
    record_bytes,
    refusal,
    varint,
)

INT64_MAX = 2**63 - 1
PLAIN = record_bytes(0, 0, 1, b"k", 1, b"v", 0)

times = st.one_of(st.integers(-1, INT64_MAX), st.integers(NOW_MS - 1000, NOW_MS + 1000))
blobs = st.none() | st.binary(max_size=200)
header_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
header_lists = st.lists(st.tuples(header_names, blobs), max_size=4).map(tuple)
records = st.lists(st.tuples(times, blobs, blobs, header_lists), min_size=1, max_size=20).filter(
    lambda rows: max(row[0] for row in rows) - rows[0][0] <= INT64_MAX
)


def test_compiled_loops_exist_if_a_compiler_exists() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc: without it the installation goes on without the compiled module")
    if not (Path(pybroker.records.__file__).parent / "_speedups.pyx").exists():
        pytest.skip("needs a checkout or an installation from source")
    assert importlib.import_module("pybroker.records._speedups").IMPLEMENTATION == "extension"
    assert chosen_loops.IMPLEMENTATION == "extension"


def test_pure_loops_are_used_without_compiled_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pybroker.records._speedups", None)
    monkeypatch.delitem(sys.modules, "pybroker.records.loops")
    monkeypatch.setattr(pybroker.records, "loops", chosen_loops)
    assert importlib.import_module("pybroker.records.loops").IMPLEMENTATION == "pure"


@pytest.mark.parametrize("codec", Codec)
def test_built_records_are_decoded(loops: ModuleType, codec: Codec) -> None:
    batch = batch_of(*TRICKY, codec=codec)
    assert fields_of(decoded(batch)) == list(TRICKY)
    assert [item.offset for item in decoded(batch)] == list(range(len(TRICKY)))
    header = read_header(batch)
    assert header.codec == codec
    assert header.record_count == len(TRICKY)
    assert header.base_timestamp == NOW_MS
    assert header.max_timestamp == NOW_MS + 2**40
    assert crc_matches(batch, 0, len(batch))


def test_offsets_begin_at_the_stamped_offset(loops: ModuleType) -> None:
    batch = batch_of(*TRICKY)
    stamp(batch, 0, 1_000_000, 5)
    assert [item.offset for item in decoded(batch)] == [1_000_000 + n for n in range(len(TRICKY))]


@pytest.mark.parametrize("codec", Codec)
def test_records_of_a_log_append_time_batch_have_the_broker_timestamp(
    loops: ModuleType, codec: Codec
) -> None:
    batch = batch_of(*TRICKY, codec=codec)
    restamp_log_append_time(batch, 0, len(batch), 42)
    assert crc_matches(batch, 0, len(batch))
    for item, (_, key, value, headers) in zip(decoded(batch), TRICKY, strict=True):
        assert item[1:] == (42, key, value, headers, TimestampType.LOG_APPEND_TIME)


def test_large_batch_is_decoded(loops: ModuleType) -> None:
    fields = [(NOW_MS + n, b"%d" % n, b"v" * (n % 50), ()) for n in range(20_000)]
    assert fields_of(decoded(batch_of(*fields, codec=Codec.ZSTD))) == fields


@pytest.mark.parametrize("attributes", [*Codec, 0x50])
def test_batch_emptied_by_compaction_has_no_records(loops: ModuleType, attributes: int) -> None:
    assert decoded(around(b"", 0, attributes=attributes, last_offset_delta=9)) == []


def test_records_kept_by_compaction_keep_their_offsets(loops: ModuleType) -> None:
    payload = record_bytes(5, 3, -1, -1, 0) + record_bytes(-5, 7, -1, -1, 0)
    batch = around(payload, 2, base_offset=100, last_offset_delta=9)
    assert [(item.offset, item.timestamp) for item in decoded(batch)] == [
        (103, NOW_MS + 5),
        (107, NOW_MS - 5),
    ]


def test_bytes_after_the_batch_are_ignored(loops: ModuleType) -> None:
    batch = batch_of(*TRICKY)
    assert decoded(batch + b"\xff" * 20) == decoded(batch)


def test_a_header_name_that_is_not_utf_8_is_shown_as_java_shows_it(loops: ModuleType) -> None:
    payload = record_bytes(0, 0, -1, -1, 1, 2, b"\xffa", -1)
    assert decoded(around(payload))[0].headers == (("\ufffda", None),)


def test_any_buffer_can_be_appended(loops: ModuleType) -> None:
    builder = BatchBuilder()
    builder.append(NOW_MS, bytearray(b"key"), memoryview(b"-value-")[1:6], [("h", bytearray(b"x"))])
    assert fields_of(decoded(builder.build())) == [(NOW_MS, b"key", b"value", (("h", b"x"),))]


def test_record_that_cannot_be_encoded_leaves_the_batch_unchanged(loops: ModuleType) -> None:
    builder = BatchBuilder()
    builder.append(NOW_MS, b"k", b"v")
    before = builder.build()
    with pytest.raises(ValueError, match="surrogates"):
        builder.append(NOW_MS, b"k", b"v", [("\ud800", b"")])
    without_time = BatchBuilder()
    without_time.append(-1, None, b"a")
    with pytest.raises(ValueError, match="may exceed that of the batch's first record, -1, by"):
        without_time.append(INT64_MAX, None, b"b")
    assert [each.value for each in decoded(without_time.build())] == [b"a"]
    with pytest.raises(ValueError, match="timestamp is -2"):
        builder.append(-2, b"k", b"v")
    assert builder.build() == before
    assert builder.record_count == 1


def test_an_empty_batch_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="the batch has no records"):
        BatchBuilder().build()


def test_producer_fields_reach_the_header(loops: ModuleType) -> None:
    batch = batch_of(
        *TRICKY, producer_id=2**40, producer_epoch=3, base_sequence=77, transactional=True
    )
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, 77)
    assert header.is_transactional
    assert header.last_sequence == 77 + len(TRICKY) - 1


def test_estimated_size_of_an_uncompressed_batch_is_exact(loops: ModuleType) -> None:
    builder = BatchBuilder()
    for timestamp, key, value, headers in TRICKY:
        before = builder.estimated_size
        builder.append(timestamp, key, value, headers)
        assert builder.estimated_size - before <= record_size_max(key, value, headers)
    assert len(builder.build()) == builder.estimated_size


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@given(fields=records)
@settings(max_examples=80, deadline=None)
def test_any_records_are_decoded_as_built(
    name: str, fields: list[tuple[int, bytes | None, bytes | None, tuple[()]]]
) -> None:
    loops = implementation(name)
    buffer = buffers_of(loops).RecordBuffer()
    for index, (timestamp, key, value, headers) in enumerate(fields):
        assert buffer.append(timestamp, key, value, headers, 1 << 40) == index
    data = buffer.encoded()
    count = len(fields)
    kind = TimestampType.CREATE_TIME
    found = loops.read_records(bytes(data), count, 10, count - 1, fields[0][0], None, kind, Record)
    assert fields_of(found) == fields
    deltas = [timestamp - fields[0][0] for timestamp, *_ in fields]
    keyless = next((index for index, item in enumerate(fields) if item[1] is None), -1)
    expected = (keyless, deltas.index(min(deltas)), min(deltas), max(deltas))
    assert loops.scan_records(bytes(data), count) == expected


MALFORMED = {
    "no records where one is counted": (b"", 1),
    "fewer records than counted": (PLAIN, 2),
    "more records than counted": (PLAIN * 2, 1),
    "records where none are counted": (PLAIN, 0),
    "a negative count": (PLAIN, -1),
    "a count far beyond the content": (PLAIN, 2**31 - 1),
    "a length that ends early": (PLAIN + PLAIN[:4], 2),
    "a record length beyond the data": (record_bytes(0, 0, -1, -1, 0, b"..", length=100), 1),
    "a record length that is too short": (record_bytes(0, 0, 1, b"k", 1, b"v", 0, length=7), 1),
    "a record length below the fixed fields": (record_bytes(0, 0, -1, -1, 0, length=5), 1),
    "a negative record length": (record_bytes(0, 0, -1, -1, 0, b"..", length=-1), 1),
    "a huge record length": (record_bytes(0, 0, -1, -1, 0, b"..", length=2**31 - 1), 1),
    "bytes left in the record": (record_bytes(0, 0, -1, -1, 0, b"?"), 1),
    "a key beyond the record": (record_bytes(0, 0, 50, b"k", -1, 0), 1),
    "a huge key": (record_bytes(0, 0, 2**31 - 1, b"k", -1, 0), 1),
    "a key of length -2": (record_bytes(0, 0, -2, b"k", -1, 0), 1),
    "a value beyond the record": (record_bytes(0, 0, -1, 3, b"v", 0), 1),
    "a value that reaches into the next record": (
        record_bytes(0, 0, -1, 9, b"vvv", length=8) + record_bytes(0, 1, -1, -1, 0),
        2,
    ),
    "a value of length -3": (record_bytes(0, 0, -1, -3, 0, 0), 1),
    "a number of six bytes": (record_bytes(0, 0, b"\x80\x80\x80\x80\x80\x00", -1, 0), 1),
    "a number of 33 bits": (record_bytes(0, 0, b"\xff\xff\xff\xff\x1f", -1, 0), 1),
    "a time of eleven bytes": (record_bytes(b"\x80" * 10 + b"\x00", 0, -1, -1, 0), 1),
    "a time of 65 bits": (record_bytes(b"\xff" * 9 + b"\x03", 0, -1, -1, 0), 1),
    "a number without an end": (record_bytes(0, 0, -1, b"\x80\x80"), 1),
    "a negative header count": (record_bytes(0, 0, -1, -1, -1), 1),
    "a header count beyond the record": (record_bytes(0, 0, -1, -1, 2, 0, 0), 1),
    "a huge header count": (record_bytes(0, 0, -1, -1, 2**31 - 1, b"...."), 1),
    "a header without a name": (record_bytes(0, 0, -1, -1, 1, -1, -1), 1),
    "a header name beyond the record": (record_bytes(0, 0, -1, -1, 1, 9, b"n", -1), 1),
    "a header value beyond the record": (record_bytes(0, 0, -1, -1, 1, 1, b"n", 9, b"v"), 1),
    "an offset delta below 0": (record_bytes(0, -1, -1, -1, 0), 1),
    "an offset delta beyond the last": (record_bytes(0, 1, -1, -1, 0), 1),
    "an offset delta twice": (PLAIN * 2, 2),
    "a time beyond 64 bits": (record_bytes(INT64_MAX, 0, -1, -1, 0), 1),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_records_are_rejected(loops: ModuleType, case: str) -> None:
    payload, count = MALFORMED[case]
    code, _ = refusal(decoded, around(payload, count))
    assert code is None


def test_timestamp_delta_of_65_bits_is_rejected_with_log_append_time(loops: ModuleType) -> None:
    payload, count = MALFORMED["a time of 65 bits"]
    _, text = refusal(decoded, around(payload, count, attributes=0x08))
    assert "larger than 64 bits" in text
    _, text = refusal(loops.scan_records, payload, count)
    assert "larger than 64 bits" in text


def test_record_of_minimum_size_is_decoded(loops: ModuleType) -> None:
    assert len(decoded(around(record_bytes(0, 0, -1, -1, 0)))) == 1
    overlong = record_bytes(b"\x80" * 9 + b"\x00", b"\x80\x80\x80\x80\x00", -1, -1, 0)
    assert decoded(around(overlong))[0].timestamp == NOW_MS


def test_record_error_names_the_record(loops: ModuleType) -> None:
    payload = PLAIN + record_bytes(0, 1, 50, b"k", -1, 0)
    with pytest.raises(CorruptionError, match=r"record 1 of 2: .*50"):
        decoded(around(payload, 2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_length": 40000}, "batch of 40012 bytes"),
        ({"attributes": 5}, "codec 5 is unknown"),
        ({"base_offset": INT64_MAX}, "64 bits"),
        ({"attributes": 1}, "gzip data"),
        ({"attributes": 2}, "snappy data"),
        ({"attributes": 3}, "lz4 data"),
        ({"attributes": 4}, "zstd data"),
    ],
)
def test_batch_headers_that_contradict_the_records_are_rejected(
    loops: ModuleType, changes: dict[str, int], words: str
) -> None:
    _, text = refusal(decoded, changed(batch_of(*TRICKY), **changes))
    assert words in text


def test_a_batch_cut_off_anywhere_is_refused(loops: ModuleType) -> None:
    batch = batch_of(*TRICKY[:3])
    for length in range(len(batch)):
        with pytest.raises(CorruptionError):
            decoded(batch[:length])


def outcome(call: Callable[..., object], *args: object) -> object:
    """Return the result of a call, or the type of the raised error."""
    try:
        return call(*args)
    except (CorruptionError, BrokerError) as error:
        return type(error)


@st.composite
def damaged_payloads(draw: st.DrawFn) -> bytes:
    """Generate random bytes, and valid records with a few changed bytes, which pass the first
    checks."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=80))
    batch = batch_of(*draw(st.lists(st.sampled_from(TRICKY[:6]), min_size=1, max_size=3)))
    payload = batch[HEADER_SIZE:]
    for _ in range(draw(st.integers(0, 3))):
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload)


@given(payload=damaged_payloads(), count=st.integers(-1, 6), base=st.integers(-1, INT64_MAX))
@settings(max_examples=400, deadline=None)
def test_both_implementations_agree_on_any_bytes(payload: bytes, count: int, base: int) -> None:
    modules = [implementation(name) for name in IMPLEMENTATIONS]
    kind = TimestampType.CREATE_TIME
    read = [
        outcome(module.read_records, payload, count, 0, 9, base, None, kind, Record)
        for module in modules
    ]
    assert read[0] == read[1]
    scanned = [outcome(module.scan_records, payload, count) for module in modules]
    assert scanned[0] == scanned[1]


@given(data=st.binary(max_size=150), attributes=st.integers(0, 7), count=st.integers(0, 20))
@settings(max_examples=300, deadline=None)
def test_decoding_of_any_bytes_raises_only_project_errors(
    data: bytes, attributes: int, count: int
) -> None:
    outcome(decoded, around(data, count, attributes=attributes))
    outcome(decoded, data)


def test_varints_of_the_tests_are_those_of_kafka() -> None:
    assert [varint(n) for n in (0, -1, 1, 63, -64, 64)] == [
        b"\x00", b"\x01", b"\x02", b"\x7e", b"\x7f", b"\x80\x01",
    ]  # fmt: skip
    assert pack_batch(PLAIN, 1, attributes=0, base_timestamp=NOW_MS, max_timestamp=NOW_MS) == (
        batch_of((NOW_MS, b"k", b"v", ()))
    )
