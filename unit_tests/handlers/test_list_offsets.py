"""Tests of ListOffsets and OffsetForLeaderEpoch with leader changes and open transactions."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.records.batch import read_header
from pybroker.replication.leader_state import FollowerFetch
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from unit_tests.handlers.bench import BROKER_ID, NOW_MS, Bench, batch, code, the_only, values_of

VERSIONS = range(8)
LATEST, EARLIEST = -1, -2


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    """Create a topic with offsets 0 to 3, of which the third record has the largest timestamp."""
    await bench.create("t", 2)
    await bench.produce("t", batch(b"a", b"b", timestamp=NOW_MS))
    await bench.produce("t", batch(b"c", timestamp=NOW_MS + 1000))
    await bench.produce("t", batch(b"d", timestamp=NOW_MS + 500))


def request(timestamp: int, *, topic: str = "t", partition: int = 0, **fields: Any) -> Any:
    isolation = fields.pop("isolation_level", 0)
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **fields)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )


async def look_up(
    bench: Bench, timestamp: int, version: int = 7, **fields: Any
) -> ListOffsetsPartitionResponse:
    answer = await bench.ask(ApiKey.LIST_OFFSETS, version, request(timestamp, **fields))
    found: ListOffsetsPartitionResponse = the_only(the_only(answer.topics).partitions)
    return found


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_the_latest_offset_depends_on_the_isolation_level(bench: Bench, version: int) -> None:
    open_batch = batch(b"e", producer=(7, 0, 0), transactional=True, timestamp=NOW_MS + 5000)
    writable = memoryview(bytearray(open_batch))
    partition = bench.app.replicas.partition(TopicPartition("t", 0))
    partition.append(writable, read_header(writable), acks=1, now_ms=NOW_MS)
    assert (await look_up(bench, LATEST, version)).offset == 5
    if version >= 2:
        assert (await look_up(bench, LATEST, version, isolation_level=1)).offset == 4
        assert (await look_up(bench, NOW_MS + 5000, version, isolation_level=1)).offset == -1
        assert (await look_up(bench, NOW_MS + 5000, version)).offset == 4


async def test_timestamps_are_searched_in_a_thread_and_ends_are_returned_at_once(
    bench: Bench,
) -> None:
    bench.blocking.done.clear()
    await look_up(bench, LATEST)
    await look_up(bench, EARLIEST)
    assert bench.blocking.done == []
    await look_up(bench, NOW_MS)
    assert len(bench.blocking.done) == 1


# OffsetForLeaderEpoch


async def end_of(
    bench: Bench,
    epoch: int,
    version: int = 4,
    *,
    topic: str = "t",
    current: int = -1,
    replica_id: int = -2,
) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
    asked = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    answer = await bench.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, asked)
    found: EpochEndOffset = the_only(the_only(answer.topics).partitions)
    return found


async def lead_in_epoch(bench: Bench, epoch: int, *replicas: int) -> None:
    """Make this broker the leader of t-0 in that epoch, with all replicas in sync."""
    key = TopicPartition("t", 0)
    state = PartitionState(BROKER_ID, epoch, replicas, 1)
    topic_id = bench.app.metadata.topics["t"].topic_id
    facts = PartitionFacts(key, topic_id, state, epoch, replicas)
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    await bench.app.replicas.leader_and_isr(command)


# a leader that does not know yet how far its predecessor had committed


@pytest.fixture
async def lagging(bench: Bench) -> None:
    """Begin leader epoch 2 at offset 5, with the high watermark at 4."""
    await lead_in_epoch(bench, 1, BROKER_ID, 2)
    await bench.produce("t", batch(b"e", timestamp=NOW_MS + 2000), acks=1)
    await lead_in_epoch(bench, 2, BROKER_ID, 2)


def follower_has(bench: Bench, offset: int) -> None:
    replicas = bench.app.replicas
    partition = replicas.partition(TopicPartition("t", 0))
    replicas.follower_fetched(partition, FollowerFetch(2, offset, 0), bench.clock.monotonic())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(LATEST, None), (NOW_MS + 2000, None), (NOW_MS + 1000, 2), (EARLIEST, 0)],
)
async def test_no_end_is_returned_below_the_start_of_the_leader_epoch(
    bench: Bench, lagging: None, version: int, timestamp: int, offset: int | None
) -> None:
    found = await look_up(bench, timestamp, version)
    if offset is None:
        old = version < 5
        expected = ErrorCode.LEADER_NOT_AVAILABLE if old else ErrorCode.OFFSET_NOT_AVAILABLE
        assert code(found) is expected
        return
    assert code(found) is ErrorCode.NONE
    assert (found.old_style_offsets[0] if version == 0 else found.offset) == offset


async def test_the_end_is_returned_when_the_high_watermark_reaches_the_epoch_start(
    bench: Bench, lagging: None
) -> None:
    follower_has(bench, 4)
    assert code(await look_up(bench, LATEST)) is ErrorCode.OFFSET_NOT_AVAILABLE
    follower_has(bench, 5)
    found = await look_up(bench, LATEST)
    assert (code(found), found.offset) == (ErrorCode.NONE, 5)
    assert (await look_up(bench, NOW_MS + 2000)).offset == 4
    assert (await look_up(bench, NOW_MS + 9000)).offset == -1


async def test_followers_get_the_log_end_offset(bench: Bench, lagging: None) -> None:
    asked = request(LATEST)
    asked.replica_id = 2
    answer = await bench.ask(ApiKey.LIST_OFFSETS, 7, asked)
    assert the_only(the_only(answer.topics).partitions).offset == 5


async def test_a_fetch_between_high_watermark_and_log_end_is_empty(
    bench: Bench, lagging: None
) -> None:
    for offset in (4, 5):
        found = await bench.fetch("t", offset)
        assert (code(found), values_of(found)) == (ErrorCode.NONE, [])
    assert code(await bench.fetch("t", 6)) is ErrorCode.OFFSET_OUT_OF_RANGE


# OffsetForLeaderEpoch


@pytest.fixture
async def second_epoch(bench: Bench) -> None:
    """Begin leader epoch 3 at offset 4."""
    await lead_in_epoch(bench, 3, BROKER_ID)
    await bench.produce("t", batch(b"e"))


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, (0, 4)), (1, (0, 4)), (2, (0, 4)), (3, (3, 5)), (4, (-1, -1))]
)
async def test_an_epoch_ends_at_the_start_of_the_next_larger_epoch(
    bench: Bench, second_epoch: None, epoch: int, expected: tuple[int, int]
) -> None:
    for version in range(5):
        found = await end_of(bench, epoch, version)
        assert code(found) is ErrorCode.NONE
        known_epoch = found.leader_epoch if version >= 1 else expected[0]
        assert (known_epoch, found.end_offset) == expected


async def test_the_current_leader_epoch_of_the_reader_is_checked(
    bench: Bench, second_epoch: None
) -> None:
    assert code(await end_of(bench, 0, current=2)) is ErrorCode.FENCED_LEADER_EPOCH
    assert code(await end_of(bench, 0, current=4)) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert code(await end_of(bench, 0, current=3)) is ErrorCode.NONE


async def test_a_partition_deleted_during_the_search_is_unknown(bench: Bench) -> None:
    gate = bench.blocking.hold()
    task = asyncio.ensure_future(look_up(bench, 5))
    await gate.reached.wait()
    await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request("t"))
    gate.open.set()
    found = await task
    assert (code(found), found.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


async def test_a_partition_without_a_local_replica_is_not_leader_or_follower(bench: Bench) -> None:
    assert code(await end_of(bench, 0, topic="elsewhere")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    state = PartitionState(2, 0, (2, 3), 1)
    key = TopicPartition("elsewhere", 0)
    await bench.tell(PartitionFacts(key, uuid.UUID(int=9), state, 0, (2, 3)))
    assert code(await end_of(bench, 0, topic="elsewhere")) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(await bench.fetch("elsewhere", 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    written = await bench.produce("elsewhere", batch(b"a"))
    assert code(written) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("replica_id", [-2, -1, 2])
async def test_epochs_end_at_the_log_end_for_followers_and_consumers(
    bench: Bench, replica_id: int
) -> None:
    key = TopicPartition("t", 0)
    state = PartitionState(BROKER_ID, 1, (BROKER_ID, 2), 1)
    topic_id = bench.app.metadata.topics["t"].topic_id
    facts = PartitionFacts(key, topic_id, state, 1, (BROKER_ID, 2))
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    await bench.app.replicas.leader_and_isr(command)
    before = await end_of(bench, 1, replica_id=replica_id)
    await bench.produce("t", batch(b"not committed"), acks=1)
    found = await end_of(bench, 1, replica_id=replica_id)
    assert (found.leader_epoch, found.end_offset) == (1, before.end_offset + 1)
