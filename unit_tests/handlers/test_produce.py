"""Tests of Produce requests and their responses: the wait for replicas, and checks of batches in
threads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.records.compression import Codec
from pybroker.replication.leader_state import FollowerFetch
from pybroker.wire.api import ApiKey
from unit_tests.handlers.bench import (
    BROKER_ID,
    Bench,
    batch,
    code,
    produce_request,
    the_only,
    values_of,
)
from unit_tests.patience import PATIENCE_MS, in_time
from unit_tests.storage.faulty_disk import FaultyDisk

FOREVER_MS = 10 * PATIENCE_MS


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", 2)


def end_offset(bench: Bench, partition: int = 0, topic: str = "t") -> int:
    return bench.app.replicas.partition(TopicPartition(topic, partition)).log.log_end_offset


# acks=all


def shared(
    bench: Bench, isr: tuple[int, ...], epoch: int, leader: int = BROKER_ID, version: int = 1
) -> LeaderAndIsr:
    """Return a LeaderAndIsr that gives t-0 a second replica, on a broker that does not exist."""
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
    assert code(await bench.produce("other", batch())) is ErrorCode.NONE  # with one replica
    config = bench.app.replicas.partition(TopicPartition("other", 0)).log.config
    bench.app.replicas.partition(TopicPartition("t", 0)).log.set_config(config)


async def test_too_few_in_sync_is_19_and_nothing_is_written(bench: Bench) -> None:
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID,), 1))
    await configure(bench, min_insync_replicas="2")
    assert code(await bench.produce("t", batch())) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(await bench.produce("t", batch(), acks=1)) is ErrorCode.NONE
    assert end_offset(bench) == 1


async def produce_waiting(
    bench: Bench, timeout_ms: int = FOREVER_MS, **configs: str
) -> tuple[asyncio.Task[Any], int]:
    """Return a produce request with acks=all that waits for a second replica."""
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
    task, end = await produce_waiting(bench, min_insync_replicas="2")
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID,), 1, version=2))
    result = the_only(the_only((await in_time(task)).responses).partition_responses)
    assert (code(result), end) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 1)
    assert values_of(await bench.fetch("t", 0)) == []


@pytest.mark.parametrize("version", [3, 9])
async def test_a_sole_in_sync_replica_commits_nothing_with_min_insync_replicas_2(
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
    partition = bench.app.replicas.partition(TopicPartition("t", 0))
    bench.store_epoch("t")
    request = produce_request("t", {0: batch()}, timeout_ms=FOREVER_MS)
    tasks = [asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request)) for _ in range(3)]
    await bench.waits(bench.app.replicas.produces, *tasks)
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
    for offset in range(3):
        result = await in_time(bench.produce("t", batch(), acks=1))
        assert (code(result), result.base_offset) == (ErrorCode.NONE, offset)
    assert bench.app.replicas.partition(TopicPartition("t", 0)).high_watermark == 0


async def test_acks_all_times_out_with_7(bench: Bench) -> None:
    task, _ = await produce_waiting(bench, timeout_ms=20)
    result = the_only(the_only((await task).responses).partition_responses)
    assert (code(result), result.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)


async def test_a_deposed_leader_answers_the_waiting_producer(bench: Bench) -> None:
    task, _ = await produce_waiting(bench)
    await bench.app.replicas.leader_and_isr(shared(bench, (2,), 2, leader=2))
    result = the_only(the_only((await task).responses).partition_responses)
    assert code(result) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_deleted_partition_answers_the_waiting_producer(bench: Bench) -> None:
    task, _ = await produce_waiting(bench)
    request = bench.delete_request("t")
    await bench.ask(ApiKey.DELETE_TOPICS, 5, request)
    result = the_only(the_only((await in_time(task)).responses).partition_responses)
    assert code(result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# batches that a thread checks


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
    await bench.create("t")  # the parameter replaces the fixture that creates it
    bench.store_epoch(topic)
    bench.store_epoch("t")
    bench.blocking.done.clear()
    now_ms = bench.clock.wall_ms()
    good = await bench.produce(topic, batch(b"a", timestamp=now_ms, codec=codec))
    assert (code(good), good.base_offset) == (ErrorCode.NONE, 0)
    expected = [] if codec is Codec.NONE else ["stored_form"]
    assert bench.blocking.done == expected
    await bench.produce("t", batch(b"a", codec=codec))
    assert bench.blocking.done == expected


async def test_invalid_records_are_found_off_the_event_loop(bench: Bench) -> None:
    """Produce version 7 has no field for the invalid records."""
    await bench.create("compacted", configs=LIMITED["compacted"])
    bench.store_epoch("compacted")
    for version, named in ((9, [0, 1]), (7, [])):
        bench.blocking.done.clear()
        result = await bench.produce("compacted", batch(b"a", b"b", key=None), version=version)
        assert code(result) is ErrorCode.INVALID_RECORD
        assert [each.batch_index for each in result.record_errors] == named
        assert bench.blocking.done == ["stored_form"]


async def test_a_batch_is_not_appended_before_an_earlier_one_with_invalid_records(
    bench: Bench,
) -> None:
    await bench.create("compacted", configs=LIMITED["compacted"])
    bench.store_epoch("compacted")
    gate = bench.blocking.hold()
    request = produce_request("compacted", {0: batch(b"a", key=None)})
    request.topic_data[0].partition_data.append(
        produce_request("compacted", {0: batch(b"b")}).topic_data[0].partition_data[0]
    )
    task = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
    await gate.reached.wait()
    gate.open.set()
    results = the_only((await in_time(task)).responses).partition_responses
    assert [(code(each), each.base_offset) for each in results] == [
        (ErrorCode.INVALID_RECORD, -1),
        (ErrorCode.NONE, 0),
    ]


async def test_a_partition_deleted_while_its_batch_is_checked_is_unknown(bench: Bench) -> None:
    await bench.create("compacted", configs=LIMITED["compacted"])
    bench.store_epoch("compacted")
    gate = bench.blocking.hold()
    request = produce_request("compacted", {0: batch(b"a", codec=Codec.GZIP)})
    task = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
    await gate.reached.wait()
    await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request("compacted"))
    gate.open.set()
    result = the_only(the_only((await task).responses).partition_responses)
    assert code(result) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# the first batch of a leader epoch


@pytest.mark.parametrize("acks", [-1, 1])
async def test_a_thread_writes_the_leader_epoch_before_the_first_append(
    bench: Bench, acks: int
) -> None:
    await bench.produce("t", batch(), acks=acks)
    await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID,), 1))
    checkpoint = bench.home / "t-0" / "leader-epoch-checkpoint"
    gate = bench.blocking.hold()
    request = produce_request("t", {0: batch(), 1: batch()}, acks=acks)
    task = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
    await in_time(gate.reached.wait())
    assert end_offset(bench) == 1
    assert checkpoint.read_text() == "0\n1\n0 0\n"
    gate.open.set()
    results = the_only((await in_time(task)).responses).partition_responses
    assert [code(result) for result in results] == [ErrorCode.NONE] * 2
    assert checkpoint.read_text() == "0\n2\n0 0\n1 1\n"
    done = len(bench.blocking.done)
    assert code(await bench.produce("t", batch(), acks=acks)) is ErrorCode.NONE
    assert len(bench.blocking.done) == done


async def test_a_produce_reports_a_disk_that_cannot_store_the_leader_epoch(tmp_path: Path) -> None:
    """LeaderAndIsr writes no leader epoch, so the first produce finds the broken disk."""
    disk = FaultyDisk()
    async with Bench(tmp_path / "broken", disk=disk) as bench:
        await bench.create("t", 1)
        log = bench.app.replicas.partition(TopicPartition("t", 0)).log
        disk.faults.sync_fails = True
        assert code(await bench.produce("t", batch())) is ErrorCode.KAFKA_STORAGE_ERROR
        assert log.failure is not None
        assert log.log_end_offset == 0
        disk.faults.sync_fails = False
