"""Tests of Produce."""

from __future__ import annotations

import struct
import time
from typing import Final

import crc32c
import pytest

from integration_tests.broker import Broker
from integration_tests.stored import batches
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch,
    fetch_one,
    fetch_request,
    internal_topic,
    log_end,
    produce,
    produce_request,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import read_header
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from unit_tests.patience import PATIENCE_MS

EVERY_VERSION: Final = range(3, 10)

# A message of the formats 0 and 1: offset, size, CRC-32 (not looked at), magic, attributes, ...
OLD_FORMAT_0: Final = struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, 0)
OLD_FORMAT_1: Final = struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, 1, -1, 0)


def patched(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """Return the batch with one field changed and its CRC recomputed."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


GOOD: Final = batch_of(b"one", b"two")


def results(
    connection: Connection, *wanted: tuple[str, int, bytes], version: int = 9
) -> list[tuple[str, int, int, int, str | None]]:
    """Return (topic, partition, error code, base offset, message) of all results of one request."""
    topic_data = [
        TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=records)]
        )
        for topic, partition, records in wanted
    ]
    request = ProduceRequest(acks=-1, timeout_ms=PATIENCE_MS, topic_data=topic_data)
    return [
        (topic.name, part.index, part.error_code, part.base_offset, part.error_message)
        for topic in connection.ask(version, request, ProduceResponse).responses
        for part in topic.partition_responses
    ]


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("acks", [1, -1])
def test_the_answer_has_the_base_offset_in_every_version(
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
def test_batches_are_stored_unchanged(connection: Connection, topic: str, codec: Codec) -> None:
    create_topic(connection, topic)
    batch = batch_of(b"x" * 5000, b"y" * 5000, codec=codec)
    produce(connection, topic, batch)
    found = fetch_one(connection, topic, 0)
    assert found.records is not None
    assert bytes(found.records)[16:] == batch[16:]


def test_the_answer_has_the_log_append_time(connection: Connection, topic: str) -> None:
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
    """Check that the records get that error code and that nothing is appended."""
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


def test_an_error_of_one_partition_does_not_affect_other_partitions(
    connection: Connection, topic: str
) -> None:
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


@pytest.mark.ours
@pytest.mark.parametrize("version", EVERY_VERSION)
def test_results_have_the_order_of_the_request_and_errors_have_messages(
    connection: Connection, topic: str, version: int
) -> None:
    """Apache answers in the order of its maps, and has messages for some errors only."""
    create_topic(connection, topic, partitions=2)
    wanted = [(topic, 1, GOOD), (topic, 9, GOOD), (topic, 0, b"garbage"), ("missing", 0, GOOD)]
    answered = results(connection, *wanted, version=version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each[:4] for each in answered] == [
        (topic, 1, 0, 0),
        (topic, 9, unknown, -1),
        (topic, 0, ErrorCode.CORRUPT_MESSAGE, -1),
        ("missing", 0, unknown, -1),
    ]
    for *_, code, _, words in answered:
        assert bool(words) == (code != 0 and version >= 8)


def test_a_request_without_topics_gets_an_empty_answer(connection: Connection) -> None:
    assert connection.ask(9, ProduceRequest(acks=-1), ProduceResponse).responses == []


def test_acks_all_needs_no_more_in_sync_replicas_than_assigned(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic, configs={"min.insync.replicas": "2"})
    assert produce(connection, topic, GOOD).error_code == 0
    assert produce(connection, topic, GOOD, acks=1).error_code == 0


@pytest.mark.parametrize("version", [3, 9])
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


@pytest.mark.parametrize("version", EVERY_VERSION)
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
@pytest.mark.parametrize("old", [OLD_FORMAT_0, OLD_FORMAT_1, GOOD], ids=["0", "1", "2"])
def test_old_versions_are_refused_with_error_43(
    connection: Connection, topic: str, old: bytes
) -> None:
    """Apache converts the old formats."""
    create_topic(connection, topic)
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    for version in range(3):
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
        pytest.param(patched(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD, id="no records"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(
    connection: Connection, topic: str, records: bytes, code: ErrorCode
) -> None:
    create_topic(connection, topic)
    assert_refused(connection, topic, records, code)


@pytest.mark.ours
@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(GOOD[:-1], ErrorCode.CORRUPT_MESSAGE, id="torn"),
        pytest.param(
            patched(GOOD, 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="no codec"
        ),
        pytest.param(patched(GOOD, 21, ">h", 8), ErrorCode.INVALID_TIMESTAMP, id="log append time"),
    ],
)
def test_a_batch_with_invalid_attributes_is_refused(
    connection: Connection, topic: str, records: bytes, code: ErrorCode
) -> None:
    """Apache answers INVALID_RECORD to the first and UNKNOWN_SERVER_ERROR to the second, and
    accepts the third."""
    create_topic(connection, topic)
    assert_refused(connection, topic, records, code)


def test_a_batch_above_the_limit_gets_error_10(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    assert_refused(connection, topic, batch_of(b"x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE)
    limited = f"{topic}-limited"
    create_topic(connection, limited, configs={"max.message.bytes": "1000"})
    assert_refused(connection, limited, batch_of(b"x" * 1000), ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("codec", Codec)
def test_a_compacted_topic_refuses_records_without_key(
    connection: Connection, topic: str, codec: Codec
) -> None:
    create_topic(connection, topic, configs={"cleanup.policy": "compact"})
    keyless = batch_of(b"x", key=None, codec=codec)
    assert_refused(connection, topic, keyless, ErrorCode.INVALID_RECORD)
    assert produce(connection, topic, batch_of(b"x", codec=codec)).error_code == 0


@pytest.mark.parametrize("codec", Codec)
def test_a_record_that_is_too_old_gets_error_32(
    connection: Connection, topic: str, codec: Codec
) -> None:
    create_topic(connection, topic, configs={"message.timestamp.before.max.ms": "3600000"})
    old = batch_of(b"x", timestamps=[1_500_000_000_000], codec=codec)
    assert_refused(connection, topic, old, ErrorCode.INVALID_TIMESTAMP)


def mixed(*records: tuple[bytes | None, int], codec: Codec = Codec.NONE) -> bytes:
    """Return a batch of records with these keys and timestamps."""
    builder = BatchBuilder(codec)
    for key, timestamp in records:
        builder.append(timestamp, key, b"value")
    return builder.build()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_without_key_are_listed_as_record_errors(
    connection: Connection, topic: str, codec: Codec
) -> None:
    """KIP-467: each record error has its index in the batch; the error message names three of
    them."""
    create_topic(connection, topic, configs={"cleanup.policy": "compact"})
    now_ms = int(time.time() * 1000)
    keys = [b"a", None, b"b", None, None, None]
    result = produce(connection, topic, mixed(*((key, now_ms) for key in keys), codec=codec))
    words = f"Compacted topic cannot accept message without key in topic partition {topic}-0"
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert named(result) == dict.fromkeys([1, 3, 4, 5], words)
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{words}')" for index in (1, 3, 4))
    assert result.error_message == (
        "One or more records have been rejected due to 4 record errors in total, and only showing"
        f" the first three errors at most: [{shown}]"
    )
    assert (result.base_offset, result.log_start_offset) == (-1, 0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("option", ["before", "after"])
def test_records_with_timestamps_out_of_bounds_are_listed_as_record_errors(
    connection: Connection, topic: str, option: str, codec: Codec
) -> None:
    hour_ms = 3_600_000
    name = f"message.timestamp.{option}.max.ms"
    create_topic(connection, topic, configs={name: str(hour_ms)})
    now_ms = int(time.time() * 1000)
    wrong_ms = now_ms - 9 * hour_ms if option == "before" else now_ms + 9 * hour_ms
    records = mixed((b"a", now_ms), (b"b", wrong_ms), (b"c", now_ms), codec=codec)
    result = produce(connection, topic, records)
    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    said = "One or more records have been rejected due to invalid timestamp"
    assert result.error_message == said
    ((index, words),) = named(result).items()
    assert index == 1
    assert words is not None
    assert words.startswith(f"Timestamp {wrong_ms} of message with offset 1 is out of range.")
    assert produce(connection, topic, mixed((b"a", now_ms), codec=codec)).base_offset == 0


def test_a_timestamp_out_of_bounds_is_reported_before_a_missing_key(
    connection: Connection, topic: str
) -> None:
    options = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "3600000"}
    create_topic(connection, topic, configs=options)
    now_ms = int(time.time() * 1000)
    result = produce(connection, topic, mixed((None, now_ms), (b"a", 1_500_000_000_000)))
    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    assert list(named(result)) == [0, 1]


def named(result: PartitionProduceResponse) -> dict[int, str | None]:
    """Return the indexes of the invalid records and their messages."""
    return {each.batch_index: each.batch_index_error_message for each in result.record_errors}


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_compressed_batches_and_others_have_their_own_results(
    connection: Connection, topic: str, policy: str
) -> None:
    """Compressed batches for a compacted topic are decompressed, which takes longer."""
    create_topic(connection, topic, partitions=2, configs={"cleanup.policy": policy})
    wanted = {0: batch_of(b"a", codec=Codec.GZIP), 1: batch_of(b"b", b"c"), 7: GOOD}
    answered = results(connection, *((topic, index, data) for index, data in wanted.items()))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {each[1:4] for each in answered} == {(0, 0, 0), (1, 0, 0), (7, unknown, -1)}
    assert log_end(connection, topic) == 1


@pytest.mark.ours
def test_a_partition_named_twice_is_appended_in_the_order_of_the_request(
    connection: Connection, topic: str
) -> None:
    """Apache appends only the last batch."""
    create_topic(connection, topic, configs={"cleanup.policy": "compact"})
    first, second = batch_of(b"first", codec=Codec.LZ4), batch_of(b"second")
    answered = results(connection, (topic, 0, first), (topic, 0, second))
    assert [each[2:4] for each in answered] == [(0, 0), (0, 1)]
    found = fetch_one(connection, topic, 1)
    assert found.records is not None and bytes(found.records)[16:] == second[16:]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_transactional_batch_without_a_transactional_id_gets_error_53(
    connection: Connection, topic: str, policy: str
) -> None:
    create_topic(connection, topic, configs={"cleanup.policy": policy})
    plain = batch_of(b"a", producer=(7, 0), sequence=0, codec=Codec.GZIP)
    transactional = patched(plain, 21, ">h", 0x10 | Codec.GZIP)
    for version in EVERY_VERSION:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert_refused(connection, topic, transactional, code, version=version)
    assert fetch_one(connection, topic, 0).last_stable_offset == 0


def test_clients_cannot_write_to_internal_topics(connection: Connection) -> None:
    name = internal_topic(connection)
    assert_refused(connection, name, GOOD, ErrorCode.INVALID_TOPIC_EXCEPTION)


# acks=0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_produce_with_acks_0_gets_no_answer(
    connection: Connection, topic: str, codec: Codec
) -> None:
    create_topic(connection, topic, configs={"cleanup.policy": "compact"})
    batch = batch_of(b"unheard", codec=codec)
    versions = EVERY_VERSION if codec is Codec.NONE else EVERY_VERSION[4:]
    for version in versions:
        connection.send(version, produce_request(topic, batch, acks=0))
    assert log_end(connection, topic) == len(versions)  # the next answer is to the next request


@pytest.mark.parametrize(
    ("partition", "records"),
    [
        pytest.param(7, GOOD, id="unknown partition"),
        pytest.param(0, GOOD[:-1] + b"?", id="wrong CRC"),
        pytest.param(0, batch_of(b"x", key=None, codec=Codec.ZSTD), id="no key"),
    ],
)
def test_an_error_with_acks_0_closes_the_connection_after_the_other_partitions(
    broker: Broker, connection: Connection, topic: str, partition: int, records: bytes
) -> None:
    create_topic(connection, topic, partitions=2, configs={"cleanup.policy": "compact"})
    request = produce_request(topic, records, partition=partition, acks=0)
    request.topic_data[0].partition_data.append(PartitionProduceData(index=1, records=GOOD))
    connection.send(9, request)
    assert connection.is_closed_by_broker()
    with Connection(broker.bootstrap) as another:
        ends = fetch(another, fetch_request(topic, {0: 0, 1: 0}))
    assert {index: data.high_watermark for index, data in ends.items()} == {0: 0, 1: 2}


def test_many_requests_may_be_in_flight(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    sent = [connection.send(9, produce_request(topic, GOOD)) for _ in range(100)]
    offsets = [
        connection.receive(9, ProduceResponse, one).responses[0].partition_responses[0].base_offset
        for one in sent
    ]
    assert offsets == list(range(0, 200, 2))
