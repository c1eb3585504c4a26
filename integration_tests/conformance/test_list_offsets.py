"""Tests of ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import json
from typing import Final

import pytest

from integration_tests.apache import ApacheZooKeeper
from integration_tests.conftest import BrokerMaker
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_one,
    list_offsets_request,
    metadata,
    produce,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import iter_headers
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

READ_COMMITTED: Final = 1
LATEST, EARLIEST, LARGEST_TIMESTAMP = -1, -2, -3
BATCH: Final = batch_of(b"one", b"two", b"three")


def list_offsets(
    connection: Connection,
    topic: str,
    timestamp: int,
    *,
    version: int = 7,
    partition: int = 0,
    isolation_level: int = 0,
    **fields: int,
) -> ListOffsetsPartitionResponse:
    """Return the answer of ListOffsets for one partition. `fields` are further fields of the
    request's partition.
    """
    request = list_offsets_request(
        topic, timestamp, partition=partition, isolation_level=isolation_level
    )
    for name, value in fields.items():
        setattr(request.topics[0].partitions[0], name, value)
    answer = connection.ask(version, request, ListOffsetsResponse)
    return answer.topics[0].partitions[0]


def found_by(result: ListOffsetsPartitionResponse) -> tuple[int, int, int]:
    return result.error_code, result.offset, result.timestamp


@pytest.fixture
def three_batches(connection: Connection, topic: str) -> str:
    """Create a topic with three batches: timestamps 1000..1002, 3000..3002 and 2000..2002 from the
    offsets 0, 3 and 6 on.
    """
    create_topic(connection, topic, configs={"retention.ms": "-1"})
    for first in (1000, 3000, 2000):
        batch = batch_of(b"a", b"b", b"c", timestamps=[first, first + 1, first + 2])
        assert produce(connection, topic, batch).error_code == 0
    return topic


@pytest.mark.parametrize("version", range(1, 8))
def test_earliest_and_latest_are_answered_without_timestamp(
    connection: Connection, three_batches: str, version: int
) -> None:
    earliest = list_offsets(connection, three_batches, EARLIEST, version=version)
    latest = list_offsets(connection, three_batches, LATEST, version=version)
    assert found_by(earliest) == (0, 0, -1)
    assert found_by(latest) == (0, 9, -1)
    if version >= 4:
        assert (earliest.leader_epoch, latest.leader_epoch) == (0, 0)


def test_read_committed_latest_is_the_last_stable_offset(
    connection: Connection, three_batches: str
) -> None:
    result = list_offsets(connection, three_batches, LATEST, isolation_level=READ_COMMITTED)
    assert found_by(result) == (0, 9, -1)


@pytest.mark.parametrize(
    ("timestamp", "many", "expected"),
    [
        (EARLIEST, 1, [0]),
        (LATEST, 1, [9]),
        # Apache looks at segments
        pytest.param(1001, 1, [1], marks=pytest.mark.ours),
        pytest.param(2**62, 1, [], marks=pytest.mark.ours),
        pytest.param(LATEST, 0, [], marks=pytest.mark.ours),
    ],
)
def test_version_0_answers_a_list_of_offsets(
    connection: Connection, three_batches: str, timestamp: int, many: int, expected: list[int]
) -> None:
    found = list_offsets(connection, three_batches, timestamp, version=0, max_num_offsets=many)
    assert (found.error_code, found.old_style_offsets) == (0, expected)


def test_the_largest_timestamp_is_found(connection: Connection, three_batches: str) -> None:
    assert found_by(list_offsets(connection, three_batches, LARGEST_TIMESTAMP)) == (0, 5, 3002)


def test_an_empty_log_has_start_and_end_offset_but_no_timestamps(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    for version in range(1, 8):
        for timestamp, offset in ((LATEST, 0), (EARLIEST, 0), (5, -1)):
            found = list_offsets(connection, topic, timestamp, version=version)
            assert found_by(found) == (0, offset, -1)
    assert found_by(list_offsets(connection, topic, LARGEST_TIMESTAMP)) == (0, -1, -1)


@pytest.mark.ours
@pytest.mark.parametrize("timestamp", [LARGEST_TIMESTAMP, -4, -5, -6, -(2**63)])
def test_special_timestamps_depend_on_the_version(
    connection: Connection, topic: str, timestamp: int
) -> None:
    """Apache accepts more special timestamps, in each version."""
    create_topic(connection, topic)
    for version in range(8):
        found = list_offsets(connection, topic, timestamp, version=version)
        known = (timestamp, version) == (LARGEST_TIMESTAMP, 7)
        assert found.error_code == (ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION)
        assert found.offset == -1


@pytest.mark.parametrize(
    ("timestamp", "offset", "found"),
    [
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 1001),
        (1003, 3, 3000),
        (2001, 3, 3000),
        (3002, 5, 3002),
        (3003, -1, -1),
    ],
)
def test_a_timestamp_finds_the_first_record_that_is_not_older(
    connection: Connection, three_batches: str, timestamp: int, offset: int, found: int
) -> None:
    for version in range(1, 8):
        result = list_offsets(connection, three_batches, timestamp, version=version)
        assert found_by(result) == (0, offset, found)
        assert result.leader_epoch == (0 if version >= 4 and offset >= 0 else -1)


def test_offsets_of_an_unknown_partition_get_error_3(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for version in range(8):
        for name, partition in ((topic, 5), (topic, -1), (f"{topic}-missing", 0)):
            found = list_offsets(connection, name, LATEST, version=version, partition=partition)
            assert found_by(found) == (code, -1, -1)
    assert epoch_end(connection, f"{topic}-missing", 0) == (code, -1, -1)


def test_a_leader_epoch_from_the_future_gets_error_75(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    for version in range(4, 8):
        found = list_offsets(connection, topic, LATEST, version=version, current_leader_epoch=3)
        assert found_by(found) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert epoch_end(connection, topic, 0, current=9)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", [pytest.param(0, marks=pytest.mark.ours), *range(1, 8)])
def test_a_partition_named_twice_gets_error_42(
    connection: Connection, topic: str, version: int
) -> None:
    """Apache answers version 0 without an error."""
    create_topic(connection, topic, partitions=2)
    request = list_offsets_request(topic, LATEST)
    for partition in (0, 1):
        request.topics += list_offsets_request(topic, LATEST, partition=partition).topics
    answer = connection.ask(version, request, ListOffsetsResponse)
    codes = {
        (part.partition_index, part.error_code)
        for named in answer.topics
        for part in named.partitions
    }
    assert codes == {(0, ErrorCode.INVALID_REQUEST), (1, ErrorCode.NONE)}


# OffsetForLeaderEpoch


def epoch_end(
    connection: Connection, topic: str, epoch: int, *, version: int = 4, current: int = -1
) -> tuple[int, int, int]:
    """Return error code, leader epoch and end offset of an answer to OffsetForLeaderEpoch."""
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1 if version >= 3 else -2,
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])],
    )
    answer = connection.ask(version, request, OffsetForLeaderEpochResponse)
    result = answer.topics[0].partitions[0]
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.mark.parametrize("version", range(5))
def test_the_current_epoch_ends_at_the_end_of_the_log(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    error, epoch, end = epoch_end(connection, topic, 0, version=version)
    assert (error, end) == (0, 3)
    assert epoch == (0 if version >= 1 else -1)


def test_an_unknown_leader_epoch_has_no_end_offset_and_no_error(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    assert epoch_end(connection, topic, 5) == (0, -1, -1)


@pytest.mark.process
def test_an_older_leader_epoch_gets_error_74(
    new_broker: BrokerMaker, zookeeper: ApacheZooKeeper, topic: str
) -> None:
    broker = new_broker(zookeeper=zookeeper.connect)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
        produce(connection, topic, BATCH)
    broker.stop()
    let_another_leader_have_been(zookeeper, topic, leader_epoch=6)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        wait_for_leader(connection, topic)
        epoch = metadata(connection, topic).topics[0].partitions[0].leader_epoch
        assert epoch >= 6
        old = fetch_one(connection, topic, 0, leader_epoch=0)
        assert old.error_code == ErrorCode.FENCED_LEADER_EPOCH
        produce(connection, topic, BATCH)
        headers = list(iter_headers(fetch_one(connection, topic, 0).records or b""))
        assert [header.leader_epoch for _, header in headers] == [0, epoch]
        assert epoch_end(connection, topic, 0) == (0, 0, 3)
        assert epoch_end(connection, topic, epoch - 1) == (0, 0, 3)
        assert epoch_end(connection, topic, epoch) == (0, epoch, 6)


def let_another_leader_have_been(
    zookeeper: ApacheZooKeeper, topic: str, *, leader_epoch: int
) -> None:
    """Increase the leader epoch in the partition's state, as elections in a larger cluster do."""
    with zookeeper.client() as client:
        path = f"/brokers/topics/{topic}/partitions/0/state"
        state = json.loads(client.get(path)[0])
        state["leader_epoch"] = leader_epoch
        client.set(path, json.dumps(state).encode())
