"""Produce and InitProducerId, one test a sentence."""

from __future__ import annotations

import struct
from typing import Final

import crc32c
import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.stored import batches
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_one,
    log_end,
    new_producer,
    produce,
    produce_request,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import read_header
from pybroker.records.compression import Codec
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

EVERY_VERSION: Final = range(3, 10)
LARGEST_SEQUENCE: Final = 2**31 - 1

# A message of the formats 0 and 1: offset, size, CRC-32 (not looked at), magic, attributes, ...
OLD_FORMAT_0: Final = struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, 0)
OLD_FORMAT_1: Final = struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, 1, -1, 0)


def patched(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with one field changed and its CRC made right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


GOOD: Final = batch_of(b"one", b"two")


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("acks", [1, -1])
def test_the_answer_tells_the_first_offset_in_every_version(
    connection: Connection, topic: str, version: int, acks: int
) -> None:
    create_topic(connection, topic)
    for expected in (0, 2, 4):
        result = produce(connection, topic, GOOD, version=version, acks=acks)
        assert (result.error_code, result.base_offset) == (0, expected)
        assert result.log_append_time_ms == -1
        if version >= 5:
            assert result.log_start_offset == 0
    assert log_end(connection, topic) == 6


def test_the_broker_changes_base_offset_and_leader_epoch_only(
    broker: Broker, connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, GOOD)
    produce(connection, topic, GOOD)
    sent = read_header(GOOD)
    stored = list(batches(broker.data, topic))
    assert stored == [sent._replace(base_offset=at, leader_epoch=0) for at in (0, 2)]


@pytest.mark.parametrize("codec", Codec)
def test_batches_pass_through_untouched(connection: Connection, topic: str, codec: Codec) -> None:
    create_topic(connection, topic)
    batch = batch_of(b"x" * 5000, b"y" * 5000, codec=codec)
    produce(connection, topic, batch)
    found = fetch_one(connection, topic, 0)
    assert found.records is not None
    assert bytes(found.records)[16:] == batch[16:]


def test_a_topic_with_log_append_time_tells_it(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, configs={"message.timestamp.type": "LogAppendTime"})
    told = produce(connection, topic, GOOD).log_append_time_ms
    assert told > 1_700_000_000_000
    found = fetch_one(connection, topic, 0)
    assert found.records is not None
    stored = read_header(found.records)
    assert stored.uses_log_append_time and stored.max_timestamp == told


def assert_refused(
    connection: Connection,
    topic: str,
    records: bytes | None,
    code: ErrorCode,
    *,
    acks: int = -1,
    version: int = 9,
) -> None:
    """The records get that error and nothing is appended."""
    result = produce(connection, topic, records, acks=acks, version=version)
    assert (result.error_code, result.base_offset) == (code, -1), result
    assert log_end(connection, topic) == 0


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_get_error_21(connection: Connection, topic: str, acks: int) -> None:
    create_topic(connection, topic)
    assert_refused(connection, topic, GOOD, ErrorCode.INVALID_REQUIRED_ACKS, acks=acks)


def test_an_unknown_topic_and_partition_get_error_3(connection: Connection, topic: str) -> None:
    result = produce(connection, topic, GOOD)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(connection, topic)
    result = produce(connection, topic, GOOD, partition=1)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_bad_partition_does_not_hurt_the_others(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, partitions=3)
    contents = {0: GOOD, 1: GOOD[:-1] + b"?", 2: GOOD, 8: GOOD}
    data = [PartitionProduceData(index=p, records=r) for p, r in contents.items()]
    request = ProduceRequest(
        acks=-1, timeout_ms=9_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    (result,) = connection.ask(9, request, ProduceResponse).responses
    assert {p.index: p.error_code for p in result.partition_responses} == {
        0: 0,
        1: ErrorCode.CORRUPT_MESSAGE,
        2: 0,
        8: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_no_more_replicas_must_be_in_sync_than_there_are(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic, configs={"min.insync.replicas": "2"})
    assert produce(connection, topic, GOOD).error_code == 0
    assert produce(connection, topic, GOOD, acks=1).error_code == 0


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize(
    "records",
    [
        pytest.param(GOOD + GOOD, id="two"),
        pytest.param(b"", id="none"),
        pytest.param(None, id="null", marks=pytest.mark.ours),  # Apache never answers
    ],
)
def test_other_than_one_batch_gets_error_87(
    connection: Connection, topic: str, version: int, records: bytes | None
) -> None:
    create_topic(connection, topic)
    assert_refused(connection, topic, records, ErrorCode.INVALID_RECORD, version=version)


@pytest.mark.parametrize("version", [3, 6, 7, 9])
def test_zstd_needs_version_7(connection: Connection, topic: str, version: int) -> None:
    create_topic(connection, topic)
    records = batch_of(b"x" * 1000, codec=Codec.ZSTD)
    if version < 7:
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert_refused(connection, topic, records, code, version=version)
    else:
        assert produce(connection, topic, records, version=version).error_code == 0


@pytest.mark.parametrize("old", [OLD_FORMAT_0, OLD_FORMAT_1], ids=["magic 0", "magic 1"])
def test_old_formats_are_refused_in_new_versions(
    connection: Connection, topic: str, old: bytes
) -> None:
    create_topic(connection, topic)
    assert_refused(connection, topic, old, ErrorCode.INVALID_RECORD)


@pytest.mark.ours
@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("old", [OLD_FORMAT_0, OLD_FORMAT_1, GOOD], ids=["0", "1", "2"])
def test_old_versions_are_refused_with_error_43(
    connection: Connection, topic: str, version: int, old: bytes
) -> None:
    create_topic(connection, topic)
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert_refused(connection, topic, old, code, version=version)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(GOOD[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE, id="wrong CRC"),
        pytest.param(patched(GOOD, 23, ">i", 5), ErrorCode.INVALID_RECORD, id="last delta lies"),
        pytest.param(patched(GOOD, 57, ">i", 7), ErrorCode.INVALID_RECORD, id="count lies"),
        pytest.param(patched(GOOD, 21, ">h", 0x20), ErrorCode.INVALID_RECORD, id="control batch"),
        pytest.param(
            patched(batch_of(b"x", producer=(5, 0), sequence=0), 53, ">i", -1),
            ErrorCode.INVALID_RECORD,
            id="producer without sequence",
        ),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(
    connection: Connection, topic: str, records: bytes, code: ErrorCode
) -> None:
    create_topic(connection, topic)
    assert_refused(connection, topic, records, code)


def test_a_batch_above_the_limit_gets_error_10(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, configs={"max.message.bytes": "1000"})
    large = batch_of(b"x" * 1000)
    assert_refused(connection, topic, large, ErrorCode.MESSAGE_TOO_LARGE)


def test_a_compacted_topic_refuses_records_without_key(connection: Connection, topic: str) -> None:
    create_topic(connection, topic, configs={"cleanup.policy": "compact"})
    assert_refused(connection, topic, batch_of(b"x", key=None), ErrorCode.INVALID_RECORD)
    assert produce(connection, topic, batch_of(b"x")).error_code == 0


# Idempotence


class IdempotentProducer:
    """Sends batches of two records with a producer id to one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self.id, self.epoch = new_producer(connection)

    def send(
        self, sequence: int, *, epoch: int | None = None, connection: Connection | None = None
    ) -> tuple[int, int]:
        """Error code and base offset."""
        identity = (self.id, self.epoch if epoch is None else epoch)
        batch = batch_of(b"a", b"b", producer=identity, sequence=sequence)
        result = produce(connection or self._connection, self._topic, batch)
        return result.error_code, result.base_offset


@pytest.fixture
def producer(connection: Connection, topic: str) -> IdempotentProducer:
    create_topic(connection, topic)
    return IdempotentProducer(connection, topic)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("timeout_ms", [0, 2**31 - 1])
def test_every_producer_gets_an_id_of_its_own_whatever_its_timeout(
    connection: Connection, version: int, timeout_ms: int
) -> None:
    given = [new_producer(connection, version=version, timeout_ms=timeout_ms) for _ in range(3)]
    ids = [producer_id for producer_id, _ in given]
    assert len(set(ids)) == 3 and min(ids) >= 0
    assert {epoch for _, epoch in given} == {0}


def test_duplicates_of_the_last_five_batches_get_their_first_offset(
    connection: Connection, producer: IdempotentProducer, topic: str
) -> None:
    for sequence in range(0, 14, 2):
        assert producer.send(sequence) == (0, sequence)
    for sequence in (12, 10, 8, 6, 4, 12):
        assert producer.send(sequence) == (0, sequence)
    assert log_end(connection, topic) == 14
    assert producer.send(14) == (0, 14)


def test_a_duplicate_that_is_too_old_gets_error_45(
    connection: Connection, producer: IdempotentProducer, topic: str
) -> None:
    for sequence in range(0, 14, 2):
        producer.send(sequence)
    assert producer.send(0) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert log_end(connection, topic) == 14


def test_a_gap_gets_error_45(
    connection: Connection, producer: IdempotentProducer, topic: str
) -> None:
    producer.send(0)
    assert producer.send(4) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(2) == (0, 2)
    assert log_end(connection, topic) == 4


def test_an_old_epoch_gets_error_47(producer: IdempotentProducer) -> None:
    assert producer.send(0, epoch=3) == (0, 0)
    assert producer.send(2, epoch=2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert producer.send(2, epoch=3) == (0, 2)


def test_a_new_epoch_begins_with_sequence_0(producer: IdempotentProducer) -> None:
    assert producer.send(0) == (0, 0)
    assert producer.send(2, epoch=1) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(0, epoch=1) == (0, 2)


def test_an_unknown_producer_may_begin_anywhere(producer: IdempotentProducer) -> None:
    assert producer.send(1000) == (0, 0)
    assert producer.send(1002) == (0, 2)


def test_sequences_go_on_with_0_after_the_largest(producer: IdempotentProducer) -> None:
    assert producer.send(LARGEST_SEQUENCE - 1) == (0, 0)
    assert producer.send(0) == (0, 2)
    assert producer.send(LARGEST_SEQUENCE - 1) == (0, 0)


def test_a_batch_across_the_largest_sequence_is_followed_by_1(producer: IdempotentProducer) -> None:
    assert producer.send(LARGEST_SEQUENCE) == (0, 0)
    assert producer.send(0) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(1) == (0, 2)


@pytest.mark.parametrize("how", ["stop", pytest.param("kill9", marks=pytest.mark.process)])
def test_the_producer_is_remembered_across_a_restart(
    new_broker: BrokerMaker, topic: str, how: str
) -> None:
    broker = new_broker()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
        producer = IdempotentProducer(connection, topic)
        for sequence in (0, 2, 4):
            producer.send(sequence)
    if how == "stop":
        broker.stop()
    else:
        broker.kill9()
    broker.start()
    with Connection(broker.bootstrap) as again:
        wait_for_leader(again, topic)
        assert producer.send(4, connection=again) == (0, 4)
        gap = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert producer.send(8, connection=again) == gap
        assert producer.send(6, connection=again) == (0, 6)
        assert new_producer(again)[0] != producer.id


def test_many_requests_may_be_on_their_way(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    sent = [connection.send(9, produce_request(topic, GOOD)) for _ in range(100)]
    offsets = [
        connection.receive(9, ProduceResponse, one).responses[0].partition_responses[0].base_offset
        for one in sent
    ]
    assert offsets == list(range(0, 200, 2))
