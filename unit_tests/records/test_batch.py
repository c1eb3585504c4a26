"""Tests of batch headers: decoding, setting offset, leader epoch and timestamp, and the
checksum."""

from __future__ import annotations

import pytest

from pybroker.errors import CorruptionError
from pybroker.records.batch import (
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    TimestampType,
    crc_matches,
    iter_headers,
    read_header,
    restamp_log_append_time,
    seal,
    stamp,
)
from pybroker.records.crc32c import checksum

PLAIN = BatchHeader(
    base_offset=0,
    batch_length=49 + 5,
    leader_epoch=-1,
    magic=2,
    crc=0,
    attributes=0,
    last_offset_delta=2,
    base_timestamp=1000,
    max_timestamp=1002,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    record_count=3,
)


def batch(payload: bytes = b"12345", **changes: int) -> bytearray:
    """Return a batch with a correct checksum, the records `payload` and the changed header
    fields."""
    header = PLAIN._replace(batch_length=49 + len(payload))._replace(**changes)
    data = bytearray(HEADER.pack(*header) + payload)
    seal(data, 0, len(data))
    return data


def test_header_size_is_61_bytes() -> None:
    assert HEADER.size == HEADER_SIZE == 61


def test_every_header_field_is_decoded() -> None:
    expected = BatchHeader(7, 49, 3, 2, 0, 0x7F, 11, -5, 2**62, 2**40, 9, 2**31 - 1, 12)
    header = read_header(HEADER.pack(*expected))
    assert header == expected
    assert header.size == 61
    assert (header.last_offset, header.next_offset) == (18, 19)
    assert header.codec == 7
    assert header.is_transactional
    assert header.is_control
    assert header.uses_log_append_time
    assert header.has_delete_horizon
    assert header.has_producer
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_a_plain_header_has_no_flags() -> None:
    header = read_header(batch())
    assert header.codec == 0
    assert not header.is_transactional
    assert not header.is_control
    assert not header.uses_log_append_time
    assert not header.has_delete_horizon
    assert not header.has_producer
    assert header.timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(-1, 4, -1), (0, 0, 0), (5, 4, 9), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0)],
)
def test_sequence_numbers_wrap_to_zero(base: int, delta: int, last: int) -> None:
    assert PLAIN._replace(base_sequence=base, last_offset_delta=delta).last_sequence == last


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (batch()[:60], "60 bytes are left, expected 61"),
        (b"", "0 bytes are left"),
        (batch(magic=1), "magic is 1, expected 2"),
        (batch(magic=-1), "magic is -1"),
        (batch(batch_length=48), "length is 48, expected at least 49"),
        (batch(batch_length=-1), "length is -1"),
    ],
)
def test_invalid_headers_are_rejected(data: bytes, words: str) -> None:
    with pytest.raises(CorruptionError, match=words):
        read_header(data)


def test_header_error_names_the_position() -> None:
    with pytest.raises(CorruptionError, match="position 66"):
        read_header(batch() + batch(magic=0), 66)


def test_iter_headers_stops_at_a_batch_that_is_cut_off() -> None:
    first, second, third = batch(base_offset=0), batch(b"abc", base_offset=3), batch(base_offset=6)
    data = first + second + third
    whole = [(0, 0), (len(first), 3), (len(first) + len(second), 6)]
    for cut in range(len(data) + 1):
        seen = [(position, header.base_offset) for position, header in iter_headers(data[:cut])]
        ends = [len(first), len(first) + len(second), len(data)]
        assert seen == whole[: sum(end <= cut for end in ends)]


def test_iter_headers_raises_at_a_damaged_header() -> None:
    walk = iter_headers(batch() + batch(magic=9))
    assert next(walk)[0] == 0
    with pytest.raises(CorruptionError, match="magic is 9"):
        next(walk)


def test_checksum_detects_any_flipped_bit() -> None:
    data = batch()
    assert crc_matches(data, 0, len(data))
    for position in range(17, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        assert not crc_matches(damaged, 0, len(damaged)), position


@pytest.mark.parametrize("size", [0, 60, 65, 67])
def test_checksum_of_a_wrong_size_does_not_match(size: int) -> None:
    data = batch()
    assert len(data) == 66
    assert not crc_matches(data, 0, size)


def test_stamped_offset_and_leader_epoch_keep_the_checksum() -> None:
    data = bytearray(b"before") + batch()
    untouched = bytes(data)
    stamp(data, 6, 2**40, 17)
    header = read_header(data, 6)
    assert (header.base_offset, header.leader_epoch) == (2**40, 17)
    assert crc_matches(data, 6, header.size)
    stamp(memoryview(data), 6, PLAIN.base_offset, PLAIN.leader_epoch)
    assert data == untouched


def test_restamped_log_append_time_has_a_new_checksum() -> None:
    data = bytearray(b"before") + batch(attributes=0x13) + b"after"
    header = restamp_log_append_time(data, 6, 66, 123456)
    assert header == read_header(data, 6)
    assert header.uses_log_append_time
    assert header.attributes == 0x1B
    assert header.max_timestamp == 123456
    assert header.base_timestamp == PLAIN.base_timestamp
    assert crc_matches(data, 6, 66)
    assert data.startswith(b"before") and data.endswith(b"12345after")


def test_the_checksum_is_castagnoli() -> None:
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(memoryview(bytearray(b"_123456789_"))[1:-1]) == 0xE3069283
