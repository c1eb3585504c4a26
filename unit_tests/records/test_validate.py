"""Tests of the batches that a leader accepts from a producer, and of the error codes for invalid
batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import BrokerError, ErrorCode
from pybroker.records.batch import TimestampType, read_header
from pybroker.records.compression import Codec
from pybroker.records.validate import BatchRules, validate_produced
from unit_tests.records.vocabulary import (
    NOW_MS,
    TRICKY,
    Fields,
    around,
    batch_of,
    changed,
    record_bytes,
    refusal,
)

RULES = BatchRules(max_message_bytes=1_000_000, segment_bytes=1_000_000)
COMPACTED = replace(RULES, compacted=True)
YOUNG = replace(RULES, timestamp_before_max_ms=1000)
NOT_AHEAD = replace(RULES, timestamp_after_max_ms=1000)
KEYED: tuple[Fields, ...] = tuple((NOW_MS, b"%d" % n, b"v" * 30, ()) for n in range(5))
GOOD = batch_of(*KEYED)


def at(*times: int, codec: Codec = Codec.NONE) -> bytearray:
    return batch_of(*[(time, b"k", b"v", ()) for time in times], codec=codec)


def flipped(position: int) -> bytearray:
    data = bytearray(GOOD)
    data[position] ^= 0xFF
    return data


def magic(value: int) -> bytearray:
    data = bytearray(GOOD)
    data[16] = value
    return data


ACCEPTED: dict[str, tuple[bytearray, BatchRules]] = {
    "a plain batch": (GOOD, RULES),
    "tricky records": (batch_of(*TRICKY), RULES),
    "an idempotent producer": (
        batch_of(*KEYED, producer_id=0, producer_epoch=0, base_sequence=0),
        RULES,
    ),
    "a transaction": (
        batch_of(*KEYED, producer_id=5, producer_epoch=1, base_sequence=9, transactional=True),
        RULES,
    ),
    "zstd in version 7": (batch_of(*KEYED, codec=Codec.ZSTD), replace(RULES, api_version=7)),
    "lz4 in version 3": (batch_of(*KEYED, codec=Codec.LZ4), replace(RULES, api_version=3)),
    "exactly the largest size": (
        GOOD,
        replace(RULES, max_message_bytes=len(GOOD), segment_bytes=len(GOOD)),
    ),
    "keys in a compacted topic": (batch_of(*KEYED, codec=Codec.SNAPPY), COMPACTED),
    "an empty key in a compacted topic": (batch_of((NOW_MS, b"", b"v", ())), COMPACTED),
    "tombstones in a compacted topic": (batch_of((NOW_MS, b"k", None, ())), COMPACTED),
    "records as old as may be": (at(NOW_MS, NOW_MS - 1000), YOUNG),
    "records without time": (at(-1), replace(YOUNG, timestamp_after_max_ms=0)),
    "records as far ahead as may be": (at(NOW_MS, NOW_MS + 1000), NOT_AHEAD),
    "old records where the broker sets the time": (
        at(0, NOW_MS * 2),
        replace(
            RULES,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            timestamp_before_max_ms=1,
            timestamp_after_max_ms=1,
        ),
    ),
    "damaged records, which are not checked": (around(b"not a record"), RULES),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_valid_batch_is_accepted(loops: ModuleType, case: str) -> None:
    data, rules = ACCEPTED[case]
    before = bytes(data)
    assert validate_produced(memoryview(data), rules, NOW_MS) == read_header(data)
    assert data == before


E = ErrorCode
REFUSED: dict[str, tuple[bytes | bytearray | None, BatchRules, ErrorCode, str]] = {
    "null": (None, RULES, E.INVALID_RECORD, "no records"),
    "nothing": (b"", RULES, E.INVALID_RECORD, "no records"),
    "too short for a format": (GOOD[:16], RULES, E.CORRUPT_MESSAGE, "16 bytes"),
    "header cut off": (GOOD[:60], RULES, E.CORRUPT_MESSAGE, "60 bytes, expected at least 61"),
    "batch cut off": (GOOD[:-1], RULES, E.CORRUPT_MESSAGE, "batch length in the header"),
    "a length beyond the end": (
        changed(GOOD, batch_length=len(GOOD)),
        RULES,
        E.CORRUPT_MESSAGE,
        f"expected 49 to {len(GOOD) - 12}",
    ),
    "a huge length": (changed(GOOD, batch_length=2**31 - 1), RULES, E.CORRUPT_MESSAGE, "length"),
    "a negative length": (changed(GOOD, batch_length=-1), RULES, E.CORRUPT_MESSAGE, "length"),
    "a length below the header": (
        changed(GOOD, batch_length=48),
        RULES,
        E.CORRUPT_MESSAGE,
        "batch length in the header is 48",
    ),
    "more records than bytes": (
        around(b"not a record", record_count=2),
        RULES,
        E.INVALID_RECORD,
        "record count is 2, expected at most 1 in a batch of 73 bytes with compression codec 0",
    ),
    "more compressed records than may be decompressed": (
        around(b"any", attributes=Codec.GZIP, record_count=2**31 - 1),
        RULES,
        E.INVALID_RECORD,
        "record count is 2147483647, expected at most",
    ),
    "a byte behind the batch": (GOOD + b"\0", RULES, E.INVALID_RECORD, "1 bytes follow"),
    "a second batch": (GOOD + GOOD, RULES, E.INVALID_RECORD, "exactly one batch"),
    "format 0": (magic(0), RULES, E.INVALID_RECORD, "format is 0, expected 2"),
    "format 1": (magic(1), RULES, E.INVALID_RECORD, "format is 1, expected 2"),
    "format 1 in version 2": (
        magic(1),
        replace(RULES, api_version=2),
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        "format is 1, expected 2",
    ),
    "format 3": (magic(3), RULES, E.CORRUPT_MESSAGE, "format is 3"),
    "a flipped byte in the records": (flipped(len(GOOD) - 1), RULES, E.CORRUPT_MESSAGE, "checksum"),
    "a flipped byte in the header": (flipped(30), RULES, E.CORRUPT_MESSAGE, "checksum"),
    "a flipped codec": (flipped(22), RULES, E.CORRUPT_MESSAGE, "checksum"),
    "no record": (around(b"", 0), RULES, E.INVALID_RECORD, "record count is 0"),
    "a negative count": (changed(GOOD, record_count=-5), RULES, E.INVALID_RECORD, "count is -5"),
    "more offsets than records": (
        changed(GOOD, last_offset_delta=5),
        RULES,
        E.INVALID_RECORD,
        "last offset delta is 5, expected 4",
    ),
    "a base offset": (changed(GOOD, base_offset=1), RULES, E.INVALID_RECORD, "base offset is 1"),
    "a control batch": (changed(GOOD, attributes=0x20), RULES, E.INVALID_RECORD, "control batch"),
    "a delete horizon": (changed(GOOD, attributes=0x40), RULES, E.INVALID_RECORD, "horizon"),
    "a producer without epoch": (
        changed(GOOD, producer_id=1, base_sequence=0),
        RULES,
        E.INVALID_RECORD,
        "producer epoch -1",
    ),
    "a producer without sequence": (
        changed(GOOD, producer_id=1, producer_epoch=0),
        RULES,
        E.INVALID_RECORD,
        "sequence -1",
    ),
    "a transaction without producer": (
        changed(GOOD, attributes=0x10),
        RULES,
        E.INVALID_RECORD,
        "no producer id",
    ),
    **{
        f"codec {codec}": (
            changed(GOOD, attributes=codec),
            RULES,
            E.UNSUPPORTED_COMPRESSION_TYPE,
            f"codec {codec}",
        )
        for codec in (5, 6, 7)
    },
    "zstd in version 6": (
        batch_of(*KEYED, codec=Codec.ZSTD),
        replace(RULES, api_version=6),
        E.UNSUPPORTED_COMPRESSION_TYPE,
        "the request has version 6",
    ),
    "larger than a batch may be": (
        GOOD,
        replace(RULES, max_message_bytes=len(GOOD) - 1),
        E.MESSAGE_TOO_LARGE,
        "max.message.bytes",
    ),
    "larger than a segment": (
        GOOD,
        replace(RULES, segment_bytes=len(GOOD) - 1),
        E.RECORD_LIST_TOO_LARGE,
        "segment.bytes",
    ),
    "no key in a compacted topic": (
        batch_of(*KEYED, TRICKY[1], codec=Codec.GZIP),
        COMPACTED,
        E.INVALID_RECORD,
        "record 5 of the batch has no key",
    ),
    "damaged records in a compacted topic": (
        around(record_bytes(0, 0, 99, b"k", -1, 0)),
        COMPACTED,
        E.INVALID_RECORD,
        "record 0 of 1",
    ),
    "damaged compression in a compacted topic": (
        changed(GOOD, attributes=Codec.ZSTD),
        COMPACTED,
        E.INVALID_RECORD,
        "zstd data",
    ),
    "a bomb in a compacted topic": (
        batch_of((NOW_MS, b"k", bytes(80_000_000), ()), codec=Codec.ZSTD),
        COMPACTED,
        E.MESSAGE_TOO_LARGE,
        "expands",
    ),
    "a record that is too old": (
        at(NOW_MS, NOW_MS - 1001, NOW_MS, codec=Codec.LZ4),
        YOUNG,
        E.INVALID_TIMESTAMP,
        f"record 1 of the batch has timestamp {NOW_MS - 1001}, expected at least {NOW_MS - 1000}",
    ),
    "a record too far ahead": (
        at(NOW_MS, NOW_MS + 1001),
        NOT_AHEAD,
        E.INVALID_TIMESTAMP,
        f"expected at most {NOW_MS + 1000}",
    ),
    "a record too far ahead of which the header says nothing": (
        changed(at(NOW_MS, NOW_MS + 1001), max_timestamp=NOW_MS),
        replace(NOT_AHEAD, timestamp_before_max_ms=1000),
        E.INVALID_TIMESTAMP,
        f"timestamp {NOW_MS + 1001}",
    ),
    "a time set by the producer as if it were the broker": (
        changed(GOOD, attributes=0x08),
        RULES,
        E.INVALID_TIMESTAMP,
        "LogAppendTime",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_batch_is_rejected(loops: ModuleType, case: str) -> None:
    data, rules, expected, words = REFUSED[case]
    view = None if data is None else memoryview(data)
    code, text = refusal(validate_produced, view, rules, NOW_MS)
    assert code is expected
    assert words in text


def only_broker_errors(call: Callable[[], object]) -> None:
    try:
        call()
    except BrokerError:
        pass


STRICT = replace(RULES, compacted=True, timestamp_before_max_ms=10, timestamp_after_max_ms=10)


@given(data=st.binary(max_size=120), version=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_validation_of_any_bytes_raises_only_broker_errors(data: bytes, version: int) -> None:
    rules = replace(STRICT, api_version=version)
    only_broker_errors(lambda: validate_produced(data, rules, NOW_MS))


@given(
    payload=st.binary(max_size=60),
    codec=st.integers(0, 4),
    count=st.integers(1, 9),
    base=st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=150, deadline=None)
def test_validation_of_any_records_raises_only_broker_errors(
    payload: bytes, codec: int, count: int, base: int
) -> None:
    data = around(payload, count, attributes=codec, base_timestamp=base)
    only_broker_errors(lambda: validate_produced(data, STRICT, NOW_MS))
