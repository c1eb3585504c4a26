"""Tests of DeleteRecords: the new log start, the error codes, and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pybroker.errors import ErrorCode, StorageError
from pybroker.model import (
    Broker,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.records.batch import read_header
from pybroker.replication.authority import Authority
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.partition import Partition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pybroker.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from unit_tests.handlers.bench import BROKER_ID, NOW_MS, Bench, batch, code, the_only

HIGH_WATERMARK = -1


async def delete(
    bench: Bench, *wanted: tuple[str, int, int], version: int = 2, timeout_ms: int = 10_000
) -> list[DeleteRecordsPartitionResult]:
    """Return the results of a DeleteRecords request. `wanted` are (topic, partition, offset); each
    gets its own topic entry."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[DeleteRecordsPartition(partition_index=number, offset=offset)],
            )
            for topic, number, offset in wanted
        ],
        timeout_ms=timeout_ms,
    )
    answer = await bench.ask(ApiKey.DELETE_RECORDS, version, request)
    assert [topic.name for topic in answer.topics] == [topic for topic, _, _ in wanted]
    results = [the_only(topic.partitions) for topic in answer.topics]
    assert [result.partition_index for result in results] == [number for _, number, _ in wanted]
    return results


async def earliest(bench: Bench, topic: str = "t") -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-2)]
            )
        ],
    )
    answer = await bench.ask(ApiKey.LIST_OFFSETS, 5, request)
    offset: int = the_only(the_only(answer.topics).partitions).offset
    return offset


async def fill(bench: Bench, count: int = 10, topic: str = "t", **configs: str) -> None:
    """Create t with `count` records, each in a batch of its own."""
    options = {name.replace("_", "."): value for name, value in configs.items()}
    await bench.create(topic, configs=options)
    for number in range(count):
        await bench.produce(topic, batch(b"%d" % number))


def partition(bench: Bench, topic: str = "t") -> Partition:
    return bench.app.replicas.partitions[TopicPartition(topic, 0)]


def append(bench: Bench, data: bytes) -> None:
    """Append as a transactional producer does after AddPartitionsToTxn."""
    view = memoryview(bytearray(data))
    partition(bench).append(view, read_header(view), acks=1, now_ms=NOW_MS)


async def test_delete_records_at_a_follower_is_rejected(bench: Bench) -> None:
    await fill(bench)
    target = partition(bench)
    target.granted = Authority.NOTHING
    assert code(the_only(await delete(bench, ("t", 0, 1)))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert target.log.log_start_offset == 0


async def test_segments_wholly_below_the_new_log_start_are_deleted(bench: Bench) -> None:
    await fill(bench, segment_bytes="200", file_delete_delay_ms="0")
    before = partition(bench).log.segment_count
    assert before > 3
    await delete(bench, ("t", 0, 5))
    log = partition(bench).log
    assert log.segment_count < before
    assert log.first_base_offset <= 5
    await delete(bench, ("t", 0, HIGH_WATERMARK))
    assert (log.segment_count, log.size_bytes, log.first_base_offset) == (1, 0, 10)


@pytest.mark.parametrize("offset", [3, 10])
async def test_a_deletion_survives_a_crash(bench: Bench, offset: int) -> None:
    await fill(bench)
    await delete(bench, ("t", 0, offset))
    await bench.crash()
    async with bench.again() as later:
        assert await earliest(later) == offset
        assert code(await later.fetch("t", offset - 1)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await later.produce("t", batch())).base_offset == 10


async def test_the_new_log_start_is_durable_before_the_answer(bench: Bench) -> None:
    await fill(bench)
    gate = bench.blocking.hold()
    answer = asyncio.ensure_future(delete(bench, ("t", 0, 5)))
    await gate.reached.wait()
    assert not answer.done()
    gate.open.set()
    assert the_only(await answer).low_watermark == 5
    assert "t 0 5" in (bench.home / "log-start-offset-checkpoint").read_text().splitlines()


async def test_the_last_stable_offset_is_not_below_the_log_start(bench: Bench) -> None:
    await bench.create("t")
    append(bench, batch(b"1", b"2", producer=(7, 0, 0), transactional=True))
    await bench.produce("t", batch(b"3"))
    assert (await bench.fetch("t", 0, read_committed=True)).last_stable_offset == 0
    await delete(bench, ("t", 0, 2))
    answer = await bench.fetch("t", 2, read_committed=True)
    assert (code(answer), answer.last_stable_offset) == (ErrorCode.NONE, 2)


async def share(bench: Bench, *, alive: bool = True, leader: int = BROKER_ID) -> None:
    """Give t-0 a second replica, on broker 2. If another broker becomes the leader, the leader
    epoch rises."""
    view = bench.app.metadata
    known = view.topics["t"].topic_id
    state = PartitionState(leader, 1 + (leader != BROKER_ID), (BROKER_ID, 2), 1)
    facts = PartitionFacts(TopicPartition("t", 0), known, state, 1, (BROKER_ID, 2))
    brokers = (*view.brokers.values(), *([Broker(2, ())] if alive else []))
    epoch = bench.app.controller.epoch
    view.apply(UpdateMetadata(BROKER_ID, epoch, -1, brokers=brokers))
    await bench.app.replicas.leader_and_isr(LeaderAndIsr(BROKER_ID, epoch, -1, (facts,)))


def follower_begins_at(bench: Bench, log_start: int) -> None:
    fetch = FollowerFetch(2, fetch_offset=10, log_start_offset=log_start)
    bench.app.replicas.follower_fetched(partition(bench), fetch, bench.clock.monotonic())


async def test_the_answer_waits_for_the_log_start_of_live_followers(bench: Bench) -> None:
    """The answer waits up to the time limit for a follower whose log start is lower or unknown."""
    await fill(bench)
    await share(bench)
    late = the_only(await delete(bench, ("t", 0, 5), timeout_ms=0))
    assert (code(late), late.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    waiting = asyncio.ensure_future(delete(bench, ("t", 0, 5)))
    for log_start in (0, 4):
        follower_begins_at(bench, log_start)
        await Bench.waits(bench.app.replicas.deletions, waiting)
        assert not waiting.done()
    follower_begins_at(bench, 6)
    assert the_only(await waiting).low_watermark == 5


async def test_a_dead_replica_does_not_delay_the_answer(bench: Bench) -> None:
    await fill(bench)
    await share(bench, alive=False)
    assert the_only(await delete(bench, ("t", 0, 5))).low_watermark == 5


async def test_a_waiting_deletion_gets_not_leader_when_another_broker_leads(bench: Bench) -> None:
    await fill(bench)
    await share(bench)
    waiting = asyncio.ensure_future(delete(bench, ("t", 0, 5)))
    await Bench.waits(bench.app.replicas.deletions, waiting)
    await share(bench, leader=2)
    assert code(the_only(await waiting)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_replaced_during_a_deletion_removes_no_segments(bench: Bench) -> None:
    """A thread may be about to truncate the log of the new follower."""
    await fill(bench, segment_bytes="200")
    await share(bench)
    log = partition(bench).log
    before = log.segment_count
    gate = bench.blocking.hold()
    deleting = asyncio.ensure_future(delete(bench, ("t", 0, 5)))
    await gate.reached.wait()
    await share(bench, leader=2)
    gate.open.set()
    assert code(the_only(await deleting)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.segment_count == before


async def test_a_failed_disk_gets_kafka_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bench(tmp_path / "own") as bench:
        await fill(bench)
        log = partition(bench).log
        monkeypatch.setattr(
            bench.logs, "write_checkpoints", lambda _: log.fail(StorageError("disk"))
        )
        result = the_only(await delete(bench, ("t", 0, 5)))
        assert (code(result), result.low_watermark) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
