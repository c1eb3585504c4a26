"""Tests of flush.messages: a batch is neither acknowledged nor readable before its sync, and
many batches share one sync."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.handlers.dispatch import Answer
from pybroker.model import TopicPartition
from pybroker.replication.partition import Partition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.produce import PartitionProduceResponse, ProduceResponse
from unit_tests.handlers.bench import Bench, batch, code, produce_request, the_only, values_of
from unit_tests.idle_loop import idle
from unit_tests.storage.faulty_disk import Faults, FaultyDisk

T = "t"


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def faults(disk: FaultyDisk) -> Faults:
    return disk.faults


@pytest.fixture
async def bench(tmp_path: Path, disk: FaultyDisk) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, disk=disk) as started:
        await started.create(T, 2, {"flush.messages": "1"})
        # The lane takes clients that it has seen before.
        await started.produce(T, batch(b"first"), partition=1)
        started.store_epoch(T)
        yield started


def partition(bench: Bench, number: int = 0, topic: str = T) -> Partition:
    return bench.app.replicas.partition(TopicPartition(topic, number))


def log_syncs(faults: Faults, number: int = 0) -> int:
    return sum(f"/{T}-{number}/" in path and path.endswith(".log") for path in faults.syncs)


async def answered(bench: Bench, answer: Awaitable[Answer]) -> PartitionProduceResponse:
    response: ProduceResponse = bench.decode(ApiKey.PRODUCE, 9, await answer)
    return the_only(the_only(response.responses).partition_responses)


@pytest.mark.parametrize("acks", [1, -1])
async def test_the_answer_waits_for_the_sync(bench: Bench, faults: Faults, acks: int) -> None:
    gate = bench.blocking.hold("flush")
    producing = asyncio.create_task(bench.produce(T, batch(b"a"), acks=acks))
    await gate.reached.wait()
    await idle()
    assert not producing.done()
    assert partition(bench).log.log_end_offset == 1
    assert partition(bench).high_watermark == 0
    assert values_of(await bench.fetch(T, 0)) == []
    assert log_syncs(faults) == 0
    gate.open.set()
    assert (await producing).base_offset == 0
    assert log_syncs(faults) == 1
    assert values_of(await bench.fetch(T, 0)) == [b"a"]


@pytest.mark.parametrize("acks", [1, -1])
async def test_the_answer_of_several_partitions_waits_for_the_sync(bench: Bench, acks: int) -> None:
    gate = bench.blocking.hold("flush")
    request = produce_request(T, {0: batch(b"a"), 1: batch(b"b")}, acks=acks)
    producing = asyncio.create_task(bench.ask(ApiKey.PRODUCE, 9, request))
    await gate.reached.wait()
    await idle()
    assert not producing.done()
    gate.open.set()
    results = the_only((await producing).responses).partition_responses
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 0), (0, 1)]


async def test_acks_0_does_not_wait(bench: Bench, faults: Faults) -> None:
    gate = bench.blocking.hold("flush")
    assert await bench.ask(ApiKey.PRODUCE, 9, produce_request(T, {0: batch()}, acks=0)) is None
    await gate.reached.wait()
    assert log_syncs(faults) == 0
    gate.open.set()
    await bench.produce(T, batch())
    assert partition(bench).high_watermark == 2


@pytest.mark.parametrize("acks", [1, -1])
async def test_batches_appended_during_a_sync_share_the_next(
    bench: Bench, faults: Faults, acks: int
) -> None:
    others: list[asyncio.Task[PartitionProduceResponse]] = []
    ends: list[int] = []

    def fifty_come() -> None:
        if others:
            ends.append(partition(bench).high_watermark)
            return
        for _ in range(50):
            request = produce_request(T, {0: batch(b"x")}, acks=acks)
            answer = bench.dispatch(ApiKey.PRODUCE, 9, request)
            assert isinstance(answer, Awaitable)
            others.append(asyncio.ensure_future(answered(bench, answer)))

    faults.during_sync = fifty_come
    first = await bench.produce(T, batch(b"0"), acks=acks)
    assert first.base_offset == 0
    results = await asyncio.gather(*others)
    assert [result.base_offset for result in results] == list(range(1, 51))
    assert log_syncs(faults) == 2
    assert ends == [1]


async def test_batches_appended_before_the_sync_share_it(bench: Bench, faults: Faults) -> None:
    results = await asyncio.gather(*(bench.produce(T, batch(b"x")) for _ in range(20)))
    assert sorted(result.base_offset for result in results) == list(range(20))
    assert log_syncs(faults) == 1


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_failed_sync_is_never_acknowledged(bench: Bench, faults: Faults, acks: int) -> None:
    gate = bench.blocking.hold("flush")
    producing = [asyncio.create_task(bench.produce(T, batch(b"a"), acks=acks)) for _ in range(3)]
    await gate.reached.wait()
    faults.sync_fails = True
    gate.open.set()
    for result in await asyncio.gather(*producing):
        assert code(result) is ErrorCode.KAFKA_STORAGE_ERROR
        assert result.base_offset == -1
    faults.sync_fails = False  # as the operating system does: it reports a failed write once
    assert code(await bench.produce(T, batch(b"b"), acks=acks)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.lost


async def test_a_duplicate_is_answered_only_when_the_first_is_durable(bench: Bench) -> None:
    data = batch(b"a", producer=(7, 0, 0))
    gate = bench.blocking.hold("flush")
    first = asyncio.create_task(bench.produce(T, data, acks=1))
    await gate.reached.wait()
    again = [asyncio.create_task(bench.produce(T, data, acks=acks)) for acks in (1, -1)]
    await idle()
    assert not any(each.done() for each in again)
    gate.open.set()
    results = await asyncio.gather(first, *again)
    assert [(code(result), result.base_offset) for result in results] == [(ErrorCode.NONE, 0)] * 3
    assert partition(bench).log.log_end_offset == 1


async def test_a_slow_sync_of_one_log_does_not_hold_up_another(bench: Bench) -> None:
    gate = bench.blocking.hold("flush")
    slow = asyncio.create_task(bench.produce(T, batch(b"a")))
    await gate.reached.wait()
    assert (await bench.produce(T, batch(b"b"), partition=1)).base_offset == 1
    assert not slow.done()
    gate.open.set()
    await slow


async def test_every_fifth_record_waits_for_a_sync_with_flush_messages_5(
    bench: Bench, faults: Faults
) -> None:
    await bench.create("five", 1, {"flush.messages": "5"})
    bench.store_epoch("five")
    gate = bench.blocking.hold("flush")
    for offset in range(4):
        assert (await bench.produce("five", batch(b"v"), acks=1)).base_offset == offset
    assert partition(bench, topic="five").high_watermark == 4
    fifth = asyncio.create_task(bench.produce("five", batch(b"v"), acks=1))
    await gate.reached.wait()
    sixth = asyncio.create_task(bench.produce("five", batch(b"v")))
    await idle()
    assert not fifth.done()
    assert not sixth.done()
    assert partition(bench, topic="five").high_watermark == 4
    gate.open.set()
    await asyncio.gather(fifth, sixth)
    assert partition(bench, topic="five").high_watermark == 6


async def test_a_changed_flush_messages_syncs_earlier_records_at_once(
    bench: Bench, faults: Faults
) -> None:
    await bench.create("later")
    await bench.produce("later", batch(b"a"))
    log = partition(bench, topic="later").log
    assert log.recovery_point == 0
    bench.logs.set_config(
        TopicPartition("later", 0), dataclasses.replace(log.config, flush_messages=1)
    )
    await idle()
    assert log.recovery_point == log.durable_end == 1


async def test_a_deleted_partition_answers_the_producer_that_waits_for_its_sync(
    bench: Bench,
) -> None:
    gate = bench.blocking.hold("flush")
    producing = asyncio.create_task(bench.produce(T, batch(b"a"), acks=1))
    await gate.reached.wait()
    answer: Any = await bench.ask(ApiKey.DELETE_TOPICS, 5, Bench.delete_request(T))
    assert answer.responses[0].error_code == 0
    assert code(await producing) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    gate.open.set()


async def test_a_slow_sync_times_out(bench: Bench) -> None:
    gate = bench.blocking.hold("flush")
    request = produce_request(T, {0: batch(b"a")}, acks=1, timeout_ms=1)
    answer = await bench.ask(ApiKey.PRODUCE, 9, request)
    result = the_only(the_only(answer.responses).partition_responses)
    assert code(result) is ErrorCode.REQUEST_TIMED_OUT
    gate.open.set()


async def test_a_killed_brokers_batches_are_durable_before_the_restart_counts_them(
    tmp_path: Path, bench: Bench, faults: Faults
) -> None:
    gate = bench.blocking.hold("flush")
    unanswered = asyncio.create_task(bench.produce(T, batch(b"a"), acks=1))
    await gate.reached.wait()
    unanswered.cancel()
    await bench.crash()
    faults.syncs.clear()
    async with bench.again() as second:
        log = partition(second).log
        assert log.log_end_offset == log.durable_end == partition(second).high_watermark == 1
        assert log_syncs(faults) == 1
