"""Tests of the list of invalid records in a rejected batch, with Kafka's messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pybroker.errors import ErrorCode
from pybroker.records import refusals
from pybroker.records.batch import TimestampType
from pybroker.records.compression import Codec
from pybroker.records.refusals import RecordsRefused
from pybroker.records.validate import BatchRules, stored_form
from unit_tests.records.vocabulary import NOW_MS, Fields, around, batch_of, changed

RULES = BatchRules(max_message_bytes=1_000_000, segment_bytes=1_000_000, partition="orders-3")
COMPACTED = replace(RULES, compacted=True)
BOUNDED = replace(RULES, timestamp_before_max_ms=1000, timestamp_after_max_ms=2000)
KEYLESS = "Compacted topic cannot accept message without key in topic partition orders-3"
KEY: Fields = (NOW_MS, b"k", b"v", ())
NO_KEY: Fields = (NOW_MS, None, b"v", ())


def refused(data: bytearray, rules: BatchRules) -> RecordsRefused:
    with pytest.raises(RecordsRefused) as caught:
        stored_form(memoryview(data), rules, NOW_MS)
    return caught.value


def at(*times: int) -> list[Fields]:
    return [(time, b"k", b"v", ()) for time in times]


@pytest.mark.parametrize("codec", Codec)
def test_each_invalid_record_is_listed(codec: Codec) -> None:
    error = refused(batch_of(KEY, NO_KEY, KEY, NO_KEY, codec=codec), COMPACTED)
    assert error.code is ErrorCode.INVALID_RECORD
    assert error.records == ((1, KEYLESS), (3, KEYLESS))


def test_timestamp_error_names_the_bounds() -> None:
    error = refused(batch_of(*at(NOW_MS, NOW_MS + 2001, -1, NOW_MS - 1001)), BOUNDED)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    bounds = f"[{NOW_MS - 1000}, {NOW_MS + 2000}]"
    assert error.records == tuple(
        (
            index,
            f"Timestamp {time} of message with offset {index} is out of range. The timestamp"
            f" should be within {bounds}",
        )
        for index, time in ((1, NOW_MS + 2001), (3, NOW_MS - 1001))
    )


def test_timestamps_are_not_checked_with_log_append_time() -> None:
    rules = replace(BOUNDED, compacted=True, timestamp_type=TimestampType.LOG_APPEND_TIME)
    error = refused(batch_of((1, b"k", b"v", ()), (1, None, b"v", ())), rules)
    assert (error.code, [each.batch_index for each in error.records]) == (
        ErrorCode.INVALID_RECORD,
        [1],
    )


def test_all_records_with_log_append_time_of_a_producer_are_listed() -> None:
    data = changed(batch_of(KEY, NO_KEY), attributes=0x08)
    error = refused(data, RULES)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [each.message for each in error.records] == [
        f"Invalid timestamp type in message DefaultRecord(offset={offset}, timestamp={NOW_MS},"
        f" key={key} bytes, value=1 bytes). Producer should not set timestamp type to"
        " LogAppendTime."
        for offset, key in ((0, 1), (1, -1))
    ]


def test_wrong_max_timestamp_in_the_header_lists_no_record() -> None:
    data = changed(batch_of(*at(NOW_MS)), max_timestamp=NOW_MS + 9000)
    error = refused(data, BOUNDED)
    assert error.records == ()
    assert f"expected at most {NOW_MS + 2000}" in error.detail


def test_damaged_records_are_not_listed() -> None:
    """The leader rejects the batch for its header, and its records cannot be decompressed."""
    data = around(b"no gzip", 1, attributes=Codec.GZIP, max_timestamp=NOW_MS + 9000)
    assert refused(data, BOUNDED).records == ()


@pytest.mark.parametrize(("limit", "named"), [("NAMED_MAX", [0, 1, 2]), ("WALKED_MAX", [0, 1, 2])])
def test_number_of_listed_records_is_limited(
    limit: str, named: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, limit, 3)
    error = refused(batch_of(*[NO_KEY] * 10), COMPACTED)
    assert [each.batch_index for each in error.records] == named
    assert "due to at least 3 record errors in total" in error.detail


def test_error_beyond_the_checked_records_is_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusals, "WALKED_MAX", 3)
    error = refused(batch_of(*[KEY] * 5, NO_KEY), COMPACTED)
    assert error.records == ()
    assert "record 5 of the batch has no key" in error.detail
