"""Tests of the markers that end transactions."""

from __future__ import annotations

from types import ModuleType

import pytest

from pybroker.errors import CorruptionError
from pybroker.records.batch import crc_matches, read_header
from pybroker.records.control import (
    ControlType,
    EndTransaction,
    build_end_transaction,
    parse_control,
)
from pybroker.records.record import Record
from unit_tests.records.vocabulary import NOW_MS, decoded


def control(key: str | None, value: str | None) -> Record:
    return Record(
        7,
        NOW_MS,
        None if key is None else bytes.fromhex(key),
        None if value is None else bytes.fromhex(value),
    )


@pytest.mark.parametrize("kind", ControlType)
def test_marker_is_parsed_as_built(loops: ModuleType, kind: ControlType) -> None:
    marker = EndTransaction(kind, 12)
    data = build_end_transaction(marker, producer_id=9, producer_epoch=4, timestamp_ms=NOW_MS)
    header = read_header(data)
    assert crc_matches(data, 0, header.size)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 4, -1)
    assert (header.record_count, header.codec) == (1, 0)
    (record,) = decoded(data)
    assert record.timestamp == header.max_timestamp == NOW_MS
    assert parse_control(record) == marker


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("00000000", "000000000005", EndTransaction(ControlType.ABORT, 5)),
        ("00000001", "0000ffffffff", EndTransaction(ControlType.COMMIT, -1)),
        ("0001000199", "00010000000577", EndTransaction(ControlType.COMMIT, 5)),
        ("00000002", None, None),
        ("0000ffff", "00", None),
    ],
)
def test_marker_bytes_are_parsed(
    key: str, value: str | None, expected: EndTransaction | None
) -> None:
    assert parse_control(control(key, value)) == expected


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (None, "000000000005", "control record at offset 7: key is null, expected at least 4"),
        ("000000", "000000000005", "key has 3 bytes, expected at least 4 bytes"),
        ("ffff0000", "000000000005", "key has version -1, expected 0 or more"),
        ("00000001", None, "control record at offset 7: value is null, expected at least 6"),
        ("00000001", "0000000000", "value has 5 bytes, expected at least 6 bytes"),
        ("00000001", "ffff00000005", "value has version -1, expected 0 or more"),
    ],
)
def test_damaged_markers_are_rejected(key: str | None, value: str | None, words: str) -> None:
    with pytest.raises(CorruptionError, match=words):
        parse_control(control(key, value))
