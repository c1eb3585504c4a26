"""Tests of Fetch without fetch sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.broker import Broker
from integration_tests.wire_client import (
    FOREVER_MS,
    Connection,
    batch_of,
    create_topic,
    fetch,
    fetch_one,
    fetch_request,
    metadata,
    produce,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import iter_headers
from pybroker.records.compression import Codec
from pybroker.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData
from pybroker.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from unit_tests.patience import MOMENT_S, PATIENCE_MS

READ_COMMITTED = 1
EVERY_VERSION = range(4, 13)
BATCH = batch_of(b"one", b"two", b"three")


def bytes_of(data: PartitionData) -> bytes:
    """Return the records of an answer. They are never null, because some clients fail on null."""
    assert data.records is not None
    return bytes(data.records)


def offsets_of(data: PartitionData) -> list[int]:
    """Return the base offsets of the batches in an answer."""
    return [header.base_offset for _, header in iter_headers(bytes_of(data))]


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_records_are_fetched_as_they_were_sent_in_every_version(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    found = fetch_one(connection, topic, 0, version=version)
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 3, 3)
    assert bytes_of(found)[16:] == BATCH[16:]  # the broker sets base offset and leader epoch
    if version >= 5:
        assert found.log_start_offset == 0
    assert found.preferred_read_replica == -1
    assert not found.aborted_transactions
    assert found.diverging_epoch is None and found.current_leader is None


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("offset", [0, 1, 99])
def test_no_records_are_an_empty_string_and_not_null(
    connection: Connection, topic: str, offset: int, known: bool
) -> None:
    if known:
        create_topic(connection, topic)
    code = ErrorCode.OFFSET_OUT_OF_RANGE if offset else ErrorCode.NONE
    for version in EVERY_VERSION:
        found = fetch_one(connection, topic, offset, version=version)
        assert found.error_code == (code if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert bytes_of(found) == b""


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_without_transactions_the_last_stable_offset_is_the_high_watermark(
    connection: Connection, topic: str, isolation: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    found = fetch(connection, fetch_request(topic, {0: 0}, isolation_level=isolation))[0]
    assert found.last_stable_offset == found.high_watermark == 3
    assert offsets_of(found) == [0]


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 5])
def test_the_answer_begins_with_the_batch_that_holds_the_offset(
    connection: Connection, topic: str, offset: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    produce(connection, topic, BATCH)
    assert offsets_of(fetch_one(connection, topic, offset)) == ([0, 3] if offset < 3 else [3])


@pytest.mark.parametrize("offset", [-1, 4, 2**40])
def test_an_offset_outside_the_log_gets_error_1(
    connection: Connection, topic: str, offset: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    found = fetch_one(connection, topic, offset)
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert bytes_of(found) == b""


def test_the_end_of_the_log_is_no_error(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    found = fetch_one(connection, topic, 3)
    assert (found.error_code, bytes_of(found)) == (0, b"")


def test_every_partition_that_was_asked_for_is_answered(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, partitions=3)
    produce(connection, topic, BATCH, partition=2)
    found = fetch(connection, fetch_request(topic, {2: 0, 9: 0, 0: 0, 1: 7}))
    assert {partition: data.error_code for partition, data in found.items()} == {
        0: 0,
        1: ErrorCode.OFFSET_OUT_OF_RANGE,
        2: 0,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert offsets_of(found[2]) == [0]
    assert all(data.records is not None for data in found.values())


def limited(topic: str, offset: int, answer_bytes: int, partition_bytes: int) -> FetchRequest:
    return fetch_request(
        topic, {0: offset}, max_bytes=answer_bytes, partition_max_bytes=partition_bytes
    )


@pytest.mark.parametrize("limits", [(1, 10_000), (10_000, 1), (0, 0)])
def test_one_complete_batch_is_returned_even_if_it_exceeds_the_limit(
    connection: Connection, topic: str, limits: tuple[int, int]
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    produce(connection, topic, BATCH)
    for version in EVERY_VERSION:
        found = fetch(connection, limited(topic, 3, *limits), version=version)[0]
        assert offsets_of(found) == [3]


def test_only_the_first_partition_with_records_may_exceed_the_limit(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic, partitions=3)
    for partition in (1, 2):
        produce(connection, topic, BATCH, partition=partition)
    found = fetch(connection, fetch_request(topic, {0: 0, 1: 0, 2: 0}, max_bytes=10))
    assert [offsets_of(found[partition]) for partition in (0, 1, 2)] == [[], [0], []]


def test_the_limits_apply_to_the_following_partitions(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    for _ in range(5):
        produce(connection, topic, BATCH)
    limit = 3 * len(BATCH)
    for limits in ((limit, 10_000), (10_000, limit)):
        found = fetch(connection, limited(topic, 0, *limits))[0]
        assert offsets_of(found) == [0, 3, 6]
        assert len(bytes_of(found)) <= limit


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_partitions_share_the_limit_in_the_order_of_the_request(
    connection: Connection, topic: str, order: tuple[int, int]
) -> None:
    create_topic(connection, topic, partitions=2)
    for partition in (0, 1):
        for _ in range(3):
            produce(connection, topic, BATCH, partition=partition)
    offsets = dict.fromkeys(order, 0)
    found = fetch(connection, fetch_request(topic, offsets, max_bytes=4 * len(BATCH) + 1))
    assert [offsets_of(found[partition]) for partition in order] == [[0, 3, 6], [0]]
    each = fetch_request(topic, offsets, partition_max_bytes=2 * len(BATCH) + 1)
    assert [offsets_of(data) for data in fetch(connection, each).values()] == [[0, 3]] * 2


# Long polling


@pytest.fixture
def reader(broker: Broker) -> Iterator[Connection]:
    """Return a second connection."""
    with Connection(broker.bootstrap) as opened:
        yield opened


def test_a_fetch_waits_for_min_bytes(
    connection: Connection, reader: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    wanted = fetch_request(topic, {0: 0}, min_bytes=2 * len(BATCH), max_wait_ms=FOREVER_MS)
    waiting = reader.send(12, wanted)
    produce(connection, topic, BATCH)
    assert reader.says_nothing_for(MOMENT_S)
    produce(connection, topic, BATCH)
    answer = reader.receive(12, FetchResponse, waiting)
    assert offsets_of(answer.responses[0].partitions[0]) == [0, 3]


def test_bytes_of_all_partitions_count_for_min_bytes(
    connection: Connection, reader: Connection, topic: str
) -> None:
    create_topic(connection, topic, partitions=2)
    wanted = fetch_request(topic, {0: 0, 1: 0}, min_bytes=2 * len(BATCH), max_wait_ms=FOREVER_MS)
    waiting = reader.send(12, wanted)
    produce(connection, topic, BATCH, partition=0, acks=1)
    assert reader.says_nothing_for(MOMENT_S)
    produce(connection, topic, BATCH, partition=1, acks=1)
    answer = reader.receive(12, FetchResponse, waiting)
    assert [offsets_of(data) for data in answer.responses[0].partitions] == [[0], [0]]


def test_a_fetch_returns_available_records_after_max_wait(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    wanted = fetch_request(topic, {0: 0}, min_bytes=10_000, max_wait_ms=100)
    assert offsets_of(fetch(connection, wanted)[0]) == [0]


@pytest.mark.parametrize(
    ("offsets", "codes"),
    [  # Apache ends the wait for the second only
        pytest.param(
            {0: 3, 9: 0},
            {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
            marks=pytest.mark.ours,
            id="unknown partition",
        ),
        pytest.param({0: 77}, {0: ErrorCode.OFFSET_OUT_OF_RANGE}, id="offset out of range"),
    ],
)
def test_an_error_of_one_partition_ends_the_wait(
    connection: Connection, topic: str, offsets: dict[int, int], codes: dict[int, int]
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    found = fetch(connection, fetch_request(topic, offsets, min_bytes=1, max_wait_ms=FOREVER_MS))
    assert {partition: data.error_code for partition, data in found.items()} == codes


@pytest.mark.parametrize(
    ("offset", "min_bytes", "max_bytes", "found"),
    [
        pytest.param(6, 0, 10_000, [], id="nothing"),
        pytest.param(6, -5, 10_000, [], id="less than nothing"),
        pytest.param(0, 2 * len(BATCH), 10_000, [0, 3], id="what is there"),
        pytest.param(0, 2**31 - 1, 10, [0], id="more than an answer may hold"),
    ],
)
def test_a_fetch_with_enough_available_bytes_does_not_wait(
    connection: Connection,
    topic: str,
    offset: int,
    min_bytes: int,
    max_bytes: int,
    found: list[int],
) -> None:
    create_topic(connection, topic)
    for _ in range(2):
        produce(connection, topic, BATCH)
    wanted = fetch_request(
        topic, {0: offset}, min_bytes=min_bytes, max_bytes=max_bytes, max_wait_ms=FOREVER_MS
    )
    assert offsets_of(fetch(connection, wanted)[0]) == found


def test_a_fetch_of_no_partition_does_not_wait(connection: Connection) -> None:
    request = FetchRequest(max_wait_ms=FOREVER_MS, min_bytes=1, topics=[])
    assert connection.ask(12, request, FetchResponse).responses == []


def test_the_deletion_of_a_topic_ends_the_wait(
    connection: Connection, reader: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    wanted = fetch_request(topic, {0: 0}, min_bytes=1, max_wait_ms=FOREVER_MS)
    waiting = reader.send(12, wanted)
    request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=PATIENCE_MS)
    connection.ask(5, request, DeleteTopicsResponse)
    answer = reader.receive(12, FetchResponse, waiting)
    (found,) = answer.responses[0].partitions
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deleted_connection_leaves_no_wait_behind(broker: Broker, topic: str) -> None:
    with Connection(broker.bootstrap) as writer:
        create_topic(writer, topic)
        for _ in range(20):
            with Connection(broker.bootstrap) as gone:
                gone.send(12, fetch_request(topic, {0: 0}, min_bytes=1, max_wait_ms=FOREVER_MS))
        produce(writer, topic, BATCH)
        assert offsets_of(fetch_one(writer, topic, 0)) == [0]


# Leader epochs


def test_a_leader_epoch_from_the_future_gets_error_75(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    found = fetch_one(connection, topic, 0, leader_epoch=1000)
    assert found.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_the_current_leader_epoch_is_accepted(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    epoch = metadata(connection, topic).topics[0].partitions[0].leader_epoch
    assert fetch_one(connection, topic, 0, leader_epoch=epoch).error_code == 0


def test_zstd_in_a_zstd_topic_is_refused_to_old_readers(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, configs={"compression.type": "zstd"})
    produce(connection, topic, batch_of(b"x" * 1000, codec=Codec.ZSTD))
    for version in EVERY_VERSION:
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 10 else ErrorCode.NONE
        assert fetch_one(connection, topic, 0, version=version).error_code == code
