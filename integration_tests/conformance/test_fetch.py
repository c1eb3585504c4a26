"""Fetch, ListOffsets and OffsetForLeaderEpoch, one test a sentence."""

from __future__ import annotations

import json
import time

import pytest

from integration_tests.apache import ApacheZooKeeper
from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch,
    fetch_one,
    fetch_request,
    list_offsets_request,
    metadata,
    produce,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import iter_headers
from pybroker.records.compression import Codec
from pybroker.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

READ_COMMITTED = 1
LATEST, EARLIEST, LARGEST_TIMESTAMP = -1, -2, -3
EVERY_VERSION = range(4, 13)
SOONER_S = 10
"""What is answered within so long has not waited for 15 s."""
BATCH = batch_of(b"one", b"two", b"three")


def bytes_of(data: PartitionData) -> bytes:
    """The records of an answer; they are never null, since clients stumble over that."""
    assert data.records is not None
    return bytes(data.records)


def offsets_of(data: PartitionData) -> list[int]:
    """The base offsets of the batches of an answer."""
    return [header.base_offset for _, header in iter_headers(bytes_of(data))]


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_records_come_as_they_were_sent_in_every_version(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    found = fetch_one(connection, topic, 0, version=version)
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 3, 3)
    assert bytes_of(found)[16:] == BATCH[16:]  # base offset and leader epoch are the broker's
    if version >= 5:
        assert found.log_start_offset == 0
    assert found.preferred_read_replica == -1
    assert not found.aborted_transactions


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_no_records_are_an_empty_string_and_not_null(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    found = fetch_one(connection, topic, 0, version=version)
    assert (found.error_code, found.high_watermark) == (0, 0)
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


def test_an_unknown_topic_gets_error_3(connection: Connection, topic: str) -> None:
    found = fetch_one(connection, topic, 0)
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def limited(topic: str, offset: int, answer_bytes: int, partition_bytes: int) -> FetchRequest:
    return fetch_request(
        topic, {0: offset}, max_bytes=answer_bytes, partition_max_bytes=partition_bytes
    )


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("limits", [(1, 10_000), (10_000, 1)], ids=["answer", "partition"])
def test_one_whole_batch_comes_even_if_it_is_larger_than_the_limit(
    connection: Connection, topic: str, version: int, limits: tuple[int, int]
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    produce(connection, topic, BATCH)
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


def test_the_limits_hold_for_what_follows(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    for _ in range(5):
        produce(connection, topic, BATCH)
    limit = 3 * len(BATCH)
    for limits in ((limit, 10_000), (10_000, limit)):
        found = fetch(connection, limited(topic, 0, *limits))[0]
        assert offsets_of(found) == [0, 3, 6]
        assert len(bytes_of(found)) <= limit


# Long polling


def test_a_fetch_waits_until_there_is_enough(broker: Broker, topic: str) -> None:
    with Connection(broker.bootstrap) as reader, Connection(broker.bootstrap) as writer:
        create_topic(writer, topic)
        wanted = fetch_request(topic, {0: 0}, min_bytes=2 * len(BATCH), max_wait_ms=15_000)
        waiting = reader.send(12, wanted)
        produce(writer, topic, BATCH)
        assert reader.says_nothing_for(0.3)
        begin = time.monotonic()
        produce(writer, topic, BATCH)
        answer = reader.receive(12, FetchResponse, waiting)
        assert time.monotonic() - begin < SOONER_S
        assert offsets_of(answer.responses[0].partitions[0]) == [0, 3]


def test_a_fetch_waits_no_longer_than_it_says(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    begin = time.monotonic()
    wanted = fetch_request(topic, {0: 0}, min_bytes=1, max_wait_ms=500)
    assert bytes_of(fetch(connection, wanted)[0]) == b""
    assert 0.45 < time.monotonic() - begin < SOONER_S


@pytest.mark.parametrize(
    "fault",
    [  # Apache ends the wait for the second only
        pytest.param("unknown partition", marks=pytest.mark.ours),
        "offset out of range",
    ],
)
def test_an_error_of_one_partition_ends_the_wait(
    connection: Connection, topic: str, fault: str
) -> None:
    create_topic(connection, topic)
    offsets = {0: 0, 9: 0} if fault == "unknown partition" else {0: 77}
    begin = time.monotonic()
    fetch(connection, fetch_request(topic, offsets, min_bytes=1, max_wait_ms=15_000))
    assert time.monotonic() - begin < SOONER_S


def test_a_fetch_that_wants_nothing_is_answered_at_once(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    begin = time.monotonic()
    fetch(connection, fetch_request(topic, {0: 0}, min_bytes=0, max_wait_ms=15_000))
    assert time.monotonic() - begin < SOONER_S


def test_a_deleted_connection_leaves_no_wait_behind(broker: Broker, topic: str) -> None:
    with Connection(broker.bootstrap) as writer:
        create_topic(writer, topic)
        for _ in range(20):
            with Connection(broker.bootstrap) as reader:
                reader.send(12, fetch_request(topic, {0: 0}, min_bytes=1, max_wait_ms=60_000))
        produce(writer, topic, BATCH)
        assert offsets_of(fetch_one(writer, topic, 0)) == [0]


# Sessions


def test_a_fetch_without_session_gets_id_0(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    answer = connection.ask(12, fetch_request(topic, {0: 0}, session=(0, -1)), FetchResponse)
    assert (answer.error_code, answer.session_id) == (0, 0)


@pytest.mark.parametrize("version", range(7, 13))
def test_an_unknown_session_gets_error_70_for_the_whole_answer(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    answer = connection.ask(version, fetch_request(topic, {0: 0}, session=(4711, 3)), FetchResponse)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (answer.session_id, answer.responses) == (0, [])


# Leader epochs


def test_a_leader_epoch_from_the_future_gets_error_75(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    found = fetch_one(connection, topic, 0, leader_epoch=1000)
    assert found.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_the_current_leader_epoch_is_accepted(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    epoch = metadata(connection, topic).topics[0].partitions[0].leader_epoch
    assert fetch_one(connection, topic, 0, leader_epoch=epoch).error_code == 0


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
        headers = list(iter_headers(bytes_of(fetch_one(connection, topic, 0))))
        assert [header.leader_epoch for _, header in headers] == [0, epoch]
        assert epoch_end(connection, topic, 0) == (0, 0, 3)
        assert epoch_end(connection, topic, epoch - 1) == (0, 0, 3)
        assert epoch_end(connection, topic, epoch) == (0, epoch, 6)


def let_another_leader_have_been(
    zookeeper: ApacheZooKeeper, topic: str, *, leader_epoch: int
) -> None:
    """Raises the epoch in the partition's state, as elections in a larger cluster would."""
    with zookeeper.client() as client:
        path = f"/brokers/topics/{topic}/partitions/0/state"
        state = json.loads(client.get(path)[0])
        state["leader_epoch"] = leader_epoch
        client.set(path, json.dumps(state).encode())


def test_zstd_in_a_zstd_topic_is_refused_to_old_readers(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, configs={"compression.type": "zstd"})
    produce(connection, topic, batch_of(b"x" * 1000, codec=Codec.ZSTD))
    old = fetch_one(connection, topic, 0, version=9)
    assert old.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert fetch_one(connection, topic, 0, version=10).error_code == 0


# ListOffsets and OffsetForLeaderEpoch


def list_offsets(
    connection: Connection,
    topic: str,
    timestamp: int,
    *,
    version: int = 7,
    partition: int = 0,
    isolation_level: int = 0,
) -> ListOffsetsPartitionResponse:
    request = list_offsets_request(
        topic, timestamp, partition=partition, isolation_level=isolation_level
    )
    answer = connection.ask(version, request, ListOffsetsResponse)
    return answer.topics[0].partitions[0]


def found_by(result: ListOffsetsPartitionResponse) -> tuple[int, int, int]:
    return result.error_code, result.offset, result.timestamp


@pytest.fixture
def three_batches(connection: Connection, topic: str) -> str:
    """Timestamps 1000..1002, 3000..3002 and 2000..2002 at the offsets 0, 3 and 6."""
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


def test_version_0_answers_a_list_of_offsets(connection: Connection, three_batches: str) -> None:
    assert list_offsets(connection, three_batches, EARLIEST, version=0).old_style_offsets == [0]
    assert list_offsets(connection, three_batches, LATEST, version=0).old_style_offsets == [9]


def test_the_largest_timestamp_is_found(connection: Connection, three_batches: str) -> None:
    assert found_by(list_offsets(connection, three_batches, LARGEST_TIMESTAMP)) == (0, 5, 3002)


def test_the_largest_timestamp_of_nothing_is_minus_1(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    assert found_by(list_offsets(connection, topic, LARGEST_TIMESTAMP)) == (0, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "offset", "found"),
    [
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 1001),
        (1003, 3, 3000),
        (2001, 3, 3000),
        (3002, 5, 3002),
    ],
)
@pytest.mark.parametrize("version", range(1, 8))
def test_a_time_finds_the_first_record_that_is_not_older(
    connection: Connection,
    three_batches: str,
    version: int,
    timestamp: int,
    offset: int,
    found: int,
) -> None:
    result = list_offsets(connection, three_batches, timestamp, version=version)
    assert found_by(result) == (0, offset, found)


@pytest.mark.parametrize("version", range(1, 8))
def test_a_time_after_all_records_finds_minus_1_without_error(
    connection: Connection, three_batches: str, version: int
) -> None:
    result = list_offsets(connection, three_batches, 3003, version=version)
    assert found_by(result) == (0, -1, -1)


def test_offsets_of_an_unknown_partition_get_error_3(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    result = list_offsets(connection, topic, LATEST, partition=5)
    assert found_by(result) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


def epoch_end(
    connection: Connection, topic: str, epoch: int, *, version: int = 4, current: int = -1
) -> tuple[int, int, int]:
    """Error code, epoch and end offset that OffsetForLeaderEpoch answers."""
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


def test_an_unknown_epoch_ends_nowhere_without_error(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    produce(connection, topic, BATCH)
    assert epoch_end(connection, topic, 5) == (0, -1, -1)


def test_asking_with_a_leader_epoch_from_the_future_gets_error_75(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    assert epoch_end(connection, topic, 0, current=9)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
