"""Tests of DeleteRecords: deleted records are not served any more, and refused requests get their
error code.
"""

from __future__ import annotations

from typing import Final

import pytest

from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_one,
    internal_topic,
    list_offsets_request,
    produce,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import read_header
from pybroker.wire.messages.list_offsets import ListOffsetsResponse
from pybroker.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from unit_tests.patience import PATIENCE_MS

HIGH_WATERMARK: Final = -1
EARLIEST: Final = -2
RECORDS: Final = 10


@pytest.fixture
def filled(connection: Connection, topic: str) -> str:
    """Create a topic with `count` records, each in its own batch, and return its name."""
    create_topic(connection, topic)
    for number in range(RECORDS):
        produce(connection, topic, batch_of(b"%d" % number))
    return topic


def delete(
    connection: Connection, *wanted: tuple[str, int, int], version: int = 2
) -> dict[str, tuple[int, int]]:
    """Return topic -> (error code, low watermark). `wanted` are (topic, partition, offset)."""
    topics = [
        DeleteRecordsTopic(
            name=topic, partitions=[DeleteRecordsPartition(partition_index=number, offset=offset)]
        )
        for topic, number, offset in wanted
    ]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=PATIENCE_MS)
    answer = connection.ask(version, request, DeleteRecordsResponse)
    return {
        topic.name: (part.error_code, part.low_watermark)
        for topic in answer.topics
        for part in topic.partitions
    }


def offset_at(connection: Connection, topic: str, timestamp: int) -> int:
    request = list_offsets_request(topic, timestamp)
    answer = connection.ask(5, request, ListOffsetsResponse)
    return answer.topics[0].partitions[0].offset


@pytest.mark.parametrize("version", range(3))
def test_records_below_the_offset_are_not_served_any_more(
    connection: Connection, filled: str, version: int
) -> None:
    assert delete(connection, (filled, 0, 4), version=version) == {filled: (0, 4)}
    assert fetch_one(connection, filled, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    found = fetch_one(connection, filled, 4)
    assert found.records is not None
    assert (found.log_start_offset, read_header(found.records).base_offset) == (4, 4)
    assert offset_at(connection, filled, EARLIEST) == offset_at(connection, filled, 0) == 4


def test_offset_minus_1_means_the_high_watermark(connection: Connection, filled: str) -> None:
    assert delete(connection, (filled, 0, HIGH_WATERMARK)) == {filled: (0, RECORDS)}
    assert offset_at(connection, filled, EARLIEST) == RECORDS
    assert produce(connection, filled, batch_of(b"next")).base_offset == RECORDS


@pytest.mark.parametrize("again", [0, 2, 4])
def test_the_log_start_offset_never_decreases(
    connection: Connection, filled: str, again: int
) -> None:
    delete(connection, (filled, 0, 4))
    assert delete(connection, (filled, 0, again)) == {filled: (0, 4)}


@pytest.mark.parametrize(
    ("partition", "offset", "code"),
    [
        (0, RECORDS + 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, -2, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, 2**63 - 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_invalid_deletion_gets_its_error_and_others_are_carried_out(
    connection: Connection, filled: str, partition: int, offset: int, code: ErrorCode
) -> None:
    other = f"{filled}-other"
    create_topic(connection, other)
    produce(connection, other, batch_of(b"1", b"2"))
    wanted = [(filled, partition, offset), (f"{filled}-missing", 0, 0), (other, 0, 2)]
    assert delete(connection, *wanted) == {
        filled: (code, -1),
        f"{filled}-missing": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        other: (0, 2),
    }
    assert offset_at(connection, filled, EARLIEST) == 0


def test_records_of_compacted_topics_are_not_deleted(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, configs={"cleanup.policy": "compact"})
    both = f"{topic}-both"
    create_topic(connection, both, configs={"cleanup.policy": "compact,delete"})
    assert delete(connection, (topic, 0, 0), (both, 0, 0)) == {
        topic: (ErrorCode.POLICY_VIOLATION, -1),
        both: (0, 0),
    }


def test_records_of_internal_topics_are_not_deleted(connection: Connection) -> None:
    name = internal_topic(connection)
    assert delete(connection, (name, 0, 0)) == {name: (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)}


def test_a_producer_continues_after_its_records_are_deleted(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)

    def send(sequence: int) -> tuple[int, int]:
        batch = batch_of(b"a", producer=(7, 0), sequence=sequence)
        result = produce(connection, topic, batch)
        return result.error_code, result.base_offset

    assert [send(sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]
    delete(connection, (topic, 0, HIGH_WATERMARK))
    assert send(2) == (0, 2)
    assert send(9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(3) == (0, 3)
