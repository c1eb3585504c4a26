"""Produce: what is appended, what is refused, and what the client is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pybroker.clock import ManualClock
from pybroker.errors import CloseConnection, ErrorCode
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.records.batch import HEADER, HEADER_SIZE, SEQUENCE_MAX, read_header, seal
from pybroker.records.compression import Codec
from pybroker.replication.leader_state import FollowerFetch
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from unit_tests.handlers.bench import (
    BROKER_ID,
    NOW_MS,
    Bench,
    batch,
    code,
    produce_request,
    records_of,
    the_only,
    values_of,
)

VERSIONS = range(3, 10)


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", 2)


def end_offset(bench: Bench, partition: int = 0, topic: str = "t") -> int:
    return bench.app.replicas.partition(TopicPartition(topic, partition)).log.log_end_offset


def sealed(data: bytes, **changes: int) -> bytes:
    """The batch with other values in its header, and a checksum that fits."""
    changed = bytearray(data)
    changed[:HEADER_SIZE] = HEADER.pack(*read_header(data)._replace(**changes))
    seal(changed, 0, len(changed))
    return bytes(changed)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
async def test_the_first_offset_comes_back_and_the_records_are_stored(
    bench: Bench, version: int, acks: int
) -> None:
    assert (
        await bench.produce("t", batch(b"a", b"b"), acks=acks, version=version)
    ).base_offset == 0
    result = await bench.produce("t", batch(b"c"), acks=acks, version=version)
    assert (code(result), result.base_offset) == (ErrorCode.NONE, 2)
    assert result.log_append_time_ms == -1
    assert result.log_start_offset == (0 if version >= 5 else -1)
    assert values_of(await bench.fetch("t", 0)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_acks_0_gets_no_answer_at_all(bench: Bench, version: int) -> None:
    request = produce_request("t", {0: batch()}, acks=0)
    assert await bench.ask(ApiKey.PRODUCE, version, request) is None
    assert end_offset(bench) == 1


async def test_an_error_with_acks_0_closes_the_connection_after_the_other_partitions(
    bench: Bench,
) -> None:
    request = produce_request("t", {7: batch(), 0: batch()}, acks=0)
    with pytest.raises(CloseConnection):
        await bench.ask(ApiKey.PRODUCE, 9, request)
    assert end_offset(bench) == 1


@pytest.mark.parametrize("acks", [2, -2, 32_767])
async def test_acks_other_than_minus_1_0_1_are_21(bench: Bench, acks: int) -> None:
    result = await bench.produce("t", batch(), acks=acks)
    assert (code(result), result.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert end_offset(bench) == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_partition_has_its_own_result_in_the_order_of_the_request(
    bench: Bench, version: int
) -> None:
    request = produce_request("t", {1: batch(), 9: batch(), 0: b"garbage"})
    request.topic_data.append(
        TopicProduceData(
            name="missing", partition_data=[PartitionProduceData(index=0, records=batch())]
        )
    )
    answer = await bench.ask(ApiKey.PRODUCE, version, request)
    results = [
        (topic.name, part.index, code(part), part.base_offset)
        for topic in answer.responses
        for part in topic.partition_responses
    ]
    assert results == [
        ("t", 1, ErrorCode.NONE, 0),
        ("t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("t", 0, ErrorCode.CORRUPT_MESSAGE, -1),
        ("missing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]
    parts = [part for topic in answer.responses for part in topic.partition_responses]
    assert all(
        bool(part.error_message) == (part.error_code != 0 and version >= 8) for part in parts
    )


async def test_a_request_for_nothing_is_answered_with_nothing(bench: Bench) -> None:
    assert (await bench.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1))).responses == []


@pytest.mark.parametrize("version", range(3))
async def test_versions_before_record_batches_are_refused_in_words(
    bench: Bench, version: int
) -> None:
    result = await bench.produce("t", b"\0" * 40, version=version)
    assert code(result) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert end_offset(bench) == 0


@pytest.mark.parametrize("name", ["t", "compacted"])
async def test_a_batch_of_a_transaction_that_nobody_began_is_48(bench: Bench, name: str) -> None:
    await bench.create("compacted", configs={"cleanup.policy": "compact"})
    data = batch(b"a", producer=(7, 0, 0), transactional=True, codec=Codec.GZIP)
    for version in VERSIONS:
        assert code(await bench.produce(name, data, version=version)) is (
            ErrorCode.INVALID_TXN_STATE
        )
    partition = bench.app.replicas.partition(TopicPartition(name, 0))
    assert (partition.log.log_end_offset, partition.last_stable_offset()) == (0, 0)


BAD_BATCHES = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "two batches": (batch() + batch(), ErrorCode.INVALID_RECORD),
    "torn": (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
    "flipped bit": (batch()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
    "too large": (batch(b"x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
    "old format": (batch()[:16] + b"\1" + batch()[17:], ErrorCode.INVALID_RECORD),
    "no records": (sealed(batch(), record_count=0), ErrorCode.INVALID_RECORD),
    "wrong count": (sealed(batch(), record_count=2), ErrorCode.INVALID_RECORD),
    "control": (sealed(batch(), attributes=0x20), ErrorCode.INVALID_RECORD),
    "unknown codec": (sealed(batch(), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "log append time": (sealed(batch(), attributes=8), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
@pytest.mark.parametrize("version", [3, 9])
async def test_a_bad_batch_gets_its_code_and_changes_nothing(
    bench: Bench, name: str, version: int
) -> None:
    data, expected = BAD_BATCHES[name]
    result = await bench.produce("t", data, version=version)
    assert (code(result), result.base_offset) == (expected, -1)
    assert end_offset(bench) == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_zstd_needs_version_7(bench: Bench, version: int) -> None:
    result = await bench.produce("t", batch(b"z" * 100, codec=Codec.ZSTD), version=version)
    late = version >= 7
    assert code(result) is (ErrorCode.NONE if late else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


@pytest.mark.parametrize("codec", list(Codec))
async def test_batches_are_stored_in_the_codec_that_came(bench: Bench, codec: Codec) -> None:
    sent = batch(b"value" * 50, codec=codec)
    await bench.produce("t", sent)
    stored = (await bench.fetch("t", 0)).records
    assert stored is not None
    assert read_header(stored).codec == codec
    assert bytes(stored)[17:] == sent[17:]


async def test_log_append_time_is_answered_and_stored(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Bench(tmp_path / "own", clock=clock) as bench:
        await bench.create("t", configs={"message.timestamp.type": "LogAppendTime"})
        result = await bench.produce("t", batch(b"a", timestamp=5))
        assert result.log_append_time_ms == clock.wall_ms()
        assert records_of(await bench.fetch("t", 0))[0].timestamp == clock.wall_ms()


async def test_nobody_writes_to_internal_topics(bench: Bench) -> None:
    await bench.create("__consumer_offsets")
    result = await bench.produce("__consumer_offsets", batch())
    assert code(result) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert end_offset(bench, topic="__consumer_offsets") == 0


# idempotence


def numbered(sequence: int, *values: bytes, epoch: int = 0, producer: int = 7) -> bytes:
    return batch(*(values or (b"v",)), producer=(producer, epoch, sequence))


async def test_a_duplicate_gives_the_first_offset_and_is_not_stored_again(bench: Bench) -> None:
    await bench.produce("t", batch(b"other"))
    first = await bench.produce("t", numbered(0, b"a", b"b"))
    again = await bench.produce("t", numbered(0, b"a", b"b"))
    assert first.base_offset == again.base_offset == 1
    assert code(again) is ErrorCode.NONE
    assert end_offset(bench) == 3


async def test_five_batches_are_remembered(bench: Bench) -> None:
    for sequence in range(6):
        await bench.produce("t", numbered(sequence))
    for sequence in range(1, 6):
        assert (await bench.produce("t", numbered(sequence))).base_offset == sequence
    forgotten = await bench.produce("t", numbered(0))
    assert code(forgotten) in (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    )
    assert end_offset(bench) == 6


async def test_a_gap_is_45(bench: Bench) -> None:
    await bench.produce("t", numbered(0))
    assert code(await bench.produce("t", numbered(2))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(await bench.produce("t", numbered(1))) is ErrorCode.NONE


async def test_an_old_epoch_is_47_and_a_new_one_begins_at_0(bench: Bench) -> None:
    await bench.produce("t", numbered(0, epoch=1))
    stale = await bench.produce("t", numbered(1, epoch=0))
    assert code(stale) is ErrorCode.INVALID_PRODUCER_EPOCH
    gap = await bench.produce("t", numbered(1, epoch=2))
    assert code(gap) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(await bench.produce("t", numbered(0, epoch=2))) is ErrorCode.NONE


async def test_sequences_wrap_to_0(bench: Bench) -> None:
    await bench.produce("t", numbered(SEQUENCE_MAX - 1, b"a", b"b"))
    result = await bench.produce("t", numbered(0, b"c"))
    assert (code(result), result.base_offset) == (ErrorCode.NONE, 2)


async def test_an_unknown_producer_may_begin_anywhere(bench: Bench) -> None:
    assert code(await bench.produce("t", numbered(4711))) is ErrorCode.NONE


async def test_producers_and_partitions_count_for_themselves(bench: Bench) -> None:
    await bench.produce("t", numbered(0))
    assert code(await bench.produce("t", numbered(0, producer=8))) is ErrorCode.NONE
    assert code(await bench.produce("t", numbered(0), partition=1)) is ErrorCode.NONE
    assert (end_offset(bench), end_offset(bench, 1)) == (2, 1)


# acks=all


def shared(
    bench: Bench, isr: tuple[int, ...], epoch: int, leader: int = BROKER_ID, version: int = 1
) -> LeaderAndIsr:
    """A command that gives partition t-0 a second replica on a broker that does not exist."""
    key = TopicPartition("t", 0)
    facts = PartitionFacts(
        key,
        bench.app.metadata.topics["t"].topic_id,
        PartitionState(leader, epoch, isr, 1),
        version,
        (BROKER_ID, 2),
    )
    return LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))


async def configure(bench: Bench, **configs: str) -> None:
    """Give t-0 these options."""
    options = {name.replace("_", "."): value for name, value in configs.items()}
    await bench.create("other", configs=options)
    assert code(await bench.produce("other", batch())) is ErrorCode.NONE  # of one replica
    config = bench.app.replicas.partition(TopicPartition("other", 0)).log.config
    bench.app.replicas.partition(TopicPartition("t", 0)).log.set_config(config)


async def test_too_few_in_sync_is_19_and_nothing_is_written(bench: Bench) -> None:
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID,), 1))
    await configure(bench, min_insync_replicas="2")
    assert code(await bench.produce("t", batch())) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(await bench.produce("t", batch(), acks=1)) is ErrorCode.NONE
    assert end_offset(bench) == 1


async def produce_waiting(
    bench: Bench, timeout_ms: int = 10_000, **configs: str
) -> tuple[asyncio.Task[Any], int]:
    """A produce with acks=all that waits for a second replica."""
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID, 2), 1))
    if configs:
        await configure(bench, **configs)
    request = produce_request("t", {0: batch()}, timeout_ms=timeout_ms)
    task = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
    await bench.waits(bench.app.replicas.produces, task)
    return task, end_offset(bench)


async def test_acks_all_waits_for_the_isr(bench: Bench) -> None:
    task, end = await produce_waiting(bench)
    assert (task.done(), end) == (False, 1)
    assert values_of(await bench.fetch("t", 0)) == []
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID,), 2))
    result = the_only(the_only((await task).responses).partition_responses)
    assert (code(result), result.base_offset) == (ErrorCode.NONE, 0)
    assert values_of(await bench.fetch("t", 0)) == [b"value"]


async def test_too_few_left_in_sync_is_20_and_nothing_is_readable(bench: Bench) -> None:
    task, end = await produce_waiting(bench, timeout_ms=3_600_000, min_insync_replicas="2")
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID,), 1, version=2))
    async with asyncio.timeout(10):  # it is told, and does not wait to the end
        answer = await task
    result = the_only(the_only(answer.responses).partition_responses)
    assert (code(result), end) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 1)
    assert values_of(await bench.fetch("t", 0)) == []


@pytest.mark.parametrize("version", [3, 9])
async def test_alone_of_two_commits_nothing_where_two_are_asked_for(
    bench: Bench, version: int
) -> None:
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID,), 1))
    await configure(bench, min_insync_replicas="2")
    for offset in range(3):
        result = await bench.produce("t", batch(), acks=1, version=version)
        assert (code(result), result.base_offset) == (ErrorCode.NONE, offset)
    assert values_of(await bench.fetch("t", 0)) == []


async def test_each_produce_is_answered_when_it_is_committed(bench: Bench) -> None:
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID, 2), 1))
    request = produce_request("t", {0: batch()})
    tasks = [asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request)) for _ in range(3)]
    await bench.waits(bench.app.replicas.produces, *tasks)
    partition = bench.app.replicas.partition(TopicPartition("t", 0))
    for end, done in ((0, []), (1, [0]), (1, [0]), (3, [0, 1, 2])):
        fetch = FollowerFetch(2, end, 0)
        bench.app.replicas.follower_fetched(partition, fetch, bench.clock.monotonic())
        await asyncio.gather(*(tasks[number] for number in done))
        assert [number for number, task in enumerate(tasks) if task.done()] == done
    for task in tasks:
        assert code(the_only(the_only((await task).responses).partition_responses)) == 0


async def test_acks_1_waits_for_the_sync_and_not_for_followers(bench: Bench) -> None:
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID, 2), 1))
    await configure(bench, flush_messages="1")
    async with asyncio.timeout(30):
        for offset in range(3):
            result = await bench.produce("t", batch(), acks=1)
            assert (code(result), result.base_offset) == (ErrorCode.NONE, offset)
    assert bench.app.replicas.partition(TopicPartition("t", 0)).high_watermark == 0


async def test_acks_all_times_out_with_7(bench: Bench) -> None:
    task, _ = await produce_waiting(bench, timeout_ms=20)
    result = the_only(the_only((await task).responses).partition_responses)
    assert (code(result), result.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)


async def test_a_leader_that_is_deposed_answers_6_to_who_waits(bench: Bench) -> None:
    task, _ = await produce_waiting(bench)
    await bench.app.replicas.leader_and_isr(shared(bench, (2,), 2, leader=2))
    result = the_only(the_only((await task).responses).partition_responses)
    assert code(result) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_partition_that_goes_away_answers_who_waits(bench: Bench) -> None:
    task, _ = await produce_waiting(bench)
    request = bench.delete_request("t")
    await bench.ask(ApiKey.DELETE_TOPICS, 5, request)
    async with asyncio.timeout(30):
        result = the_only(the_only((await task).responses).partition_responses)
    assert code(result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# batches that have to be looked into


LIMITED = {
    "compacted": {"cleanup.policy": "compact"},
    "aged": {"message.timestamp.before.max.ms": "3600000"},
}


@pytest.mark.parametrize("topic", LIMITED)
@pytest.mark.parametrize("codec", list(Codec))
async def test_only_compressed_batches_of_such_topics_are_checked_off_the_event_loop(
    bench: Bench, topic: str, codec: Codec
) -> None:
    await bench.create(topic, configs=LIMITED[topic])
    bench.blocking.done.clear()
    now_ms = bench.clock.wall_ms()
    good = await bench.produce(topic, batch(b"a", timestamp=now_ms, codec=codec))
    assert (code(good), good.base_offset) == (ErrorCode.NONE, 0)
    expected = [] if codec is Codec.NONE else ["stored_form"]
    assert bench.blocking.done == expected
    await bench.produce("t", batch(b"a", codec=codec))
    assert bench.blocking.done == expected


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_compacted_topic_wants_keys(bench: Bench, codec: Codec) -> None:
    await bench.create("compacted", configs=LIMITED["compacted"])
    result = await bench.produce("compacted", batch(b"a", key=None, codec=codec))
    assert code(result) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_record_that_is_too_old_is_32(bench: Bench, codec: Codec) -> None:
    await bench.create("aged", configs=LIMITED["aged"])
    result = await bench.produce("aged", batch(b"a", timestamp=NOW_MS - 10**10, codec=codec))
    assert code(result) is ErrorCode.INVALID_TIMESTAMP


async def test_batches_checked_elsewhere_and_here_have_their_results_in_order(
    bench: Bench,
) -> None:
    await bench.create("compacted", 2, configs=LIMITED["compacted"])
    parts = {0: batch(b"a", codec=Codec.GZIP), 1: batch(b"b")}
    request = produce_request("compacted", parts)
    request.topic_data += produce_request("t", {0: batch(b"c")}).topic_data
    answer = await bench.ask(ApiKey.PRODUCE, 9, request)
    results = [
        (topic.name, part.index, code(part), part.base_offset)
        for topic in answer.responses
        for part in topic.partition_responses
    ]
    assert results == [
        ("compacted", 0, ErrorCode.NONE, 0),
        ("compacted", 1, ErrorCode.NONE, 0),
        ("t", 0, ErrorCode.NONE, 0),
    ]
    assert values_of(await bench.fetch("compacted", 0)) == [b"a"]


async def test_a_partition_named_twice_is_appended_in_the_order_of_the_request(
    bench: Bench,
) -> None:
    await bench.create("compacted", configs=LIMITED["compacted"])
    request = produce_request("compacted", {0: batch(b"first", codec=Codec.LZ4)})
    request.topic_data += produce_request("compacted", {0: batch(b"second")}).topic_data
    await bench.ask(ApiKey.PRODUCE, 9, request)
    assert values_of(await bench.fetch("compacted", 0)) == [b"first", b"second"]


@pytest.mark.parametrize("key", [b"key", None])
async def test_acks_0_keeps_its_rules_where_batches_are_checked_elsewhere(
    bench: Bench, key: bytes | None
) -> None:
    await bench.create("compacted", configs=LIMITED["compacted"])
    data = batch(b"a", key=key, codec=Codec.ZSTD)
    request = produce_request("compacted", {0: data}, acks=0)
    if key is None:
        with pytest.raises(CloseConnection):
            await bench.ask(ApiKey.PRODUCE, 9, request)
    else:
        assert await bench.ask(ApiKey.PRODUCE, 9, request) is None
    assert end_offset(bench, topic="compacted") == (0 if key is None else 1)


async def test_a_partition_that_goes_away_while_its_batch_is_checked_is_3(bench: Bench) -> None:
    await bench.create("compacted", configs=LIMITED["compacted"])
    gate = bench.blocking.hold()
    request = produce_request("compacted", {0: batch(b"a", codec=Codec.GZIP)})
    task = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
    await gate.reached.wait()
    await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request("compacted"))
    gate.open.set()
    result = the_only(the_only((await task).responses).partition_responses)
    assert code(result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
