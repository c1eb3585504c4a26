"""Tests of each row of the table of authorities: the broker answers the request with that
authority or a larger one, and rejects it with a smaller one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import KeyValue
from pybroker.replication.authority import NEEDED, Authority
from pybroker.replication.internal_log import InternalLog
from pybroker.replication.partition import Partition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pybroker.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from unit_tests.handlers.bench import NOW_MS, Bench, batch, code
from unit_tests.handlers.transactions import end

T0 = TopicPartition("t", 0)
Ask = Callable[[Bench], Awaitable[ErrorCode]]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as started:
        await started.create("t")
        await started.produce("t", batch(b"a"))
        yield started


def produce(acks: int) -> Ask:
    async def ask(bench: Bench) -> ErrorCode:
        return code(await bench.produce("t", batch(b"b"), acks=acks))

    return ask


def fetch(offset: int) -> Ask:
    async def ask(bench: Bench) -> ErrorCode:
        found = code(await bench.fetch("t", offset))
        return ErrorCode.NONE if found is ErrorCode.OFFSET_OUT_OF_RANGE else found

    return ask


def list_offsets(timestamp: int) -> Ask:
    async def ask(bench: Bench) -> ErrorCode:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name="t", partitions=[partition])
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        answer = await bench.ask(ApiKey.LIST_OFFSETS, 7, request)
        return code(answer.topics[0].partitions[0])

    return ask


async def end_of_epoch(bench: Bench) -> ErrorCode:
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = OffsetForLeaderTopic(topic="t", partitions=[partition])
    request = OffsetForLeaderEpochRequest(topics=[topic])
    answer = await bench.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    return code(answer.topics[0].partitions[0])


async def delete(bench: Bench) -> ErrorCode:
    partition = DeleteRecordsPartition(partition_index=0, offset=0)
    topic = DeleteRecordsTopic(name="t", partitions=[partition])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=0)
    answer = await bench.ask(ApiKey.DELETE_RECORDS, 2, request)
    return code(answer.topics[0].partitions[0])


END = "ListOffsets of the log end without a check in ZooKeeper"
END_CONFIRMED = "ListOffsets of the log end after a check in ZooKeeper"
LED_ELSEWHERE = "Fetch by a consumer, whatever leader the broker's metadata names"
OF_THE_LEASE = "OffsetCommit"
"""`test_a_cut_off_coordinator_commits_no_offsets` tests it."""
OF_A_FOLLOWER = "Fetch by a follower"
"""It needs the same authority as the first row of a consumer."""
OF_A_COORDINATOR = {"requests of group members", "OffsetFetch"}

ASKS: dict[str, list[Ask]] = {
    "Fetch by a consumer, until the broker's metadata names the new leader": [fetch(0)],
    "ListOffsets of the log start or of a timestamp in the log": [
        list_offsets(-2),
        list_offsets(NOW_MS - 1),
    ],
    "OffsetForLeaderEpoch": [end_of_epoch],
    "Produce with acks=all": [produce(-1)],
    "WriteTxnMarkers": [end],
    LED_ELSEWHERE: [fetch(0)],
    "Produce with acks 0 or 1": [produce(1)],
    "DeleteRecords": [delete],
    END_CONFIRMED: [list_offsets(-1), list_offsets(NOW_MS + 1_000_000)],
    END: [list_offsets(-1), list_offsets(-3), list_offsets(NOW_MS + 1_000_000)],
    "Fetch by a consumer from an offset above the log end": [fetch(1_000)],
}


def test_each_row_is_asked_for() -> None:
    assert {*ASKS, *OF_A_COORDINATOR, OF_A_FOLLOWER, OF_THE_LEASE} == NEEDED.keys()


@pytest.mark.parametrize("row", ASKS)
async def test_a_request_is_answered_from_its_authority_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    partition = bench.app.replicas.partition(T0)
    if row == LED_ELSEWHERE:
        monkeypatch.setattr(bench.app.metadata, "is_led_after", lambda key, epoch: True)
    if row == END_CONFIRMED:
        state_node = partition._facts
        assert state_node is not None
        monkeypatch.setattr(Partition, "led_version", state_node.partition_epoch)
    for level in Authority:
        partition.granted = level
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if level < NEEDED[row] else ErrorCode.NONE
        for ask in ASKS[row]:
            assert await ask(bench) is expected, level


async def test_a_coordinator_returns_offsets_from_its_authority_on(bench: Bench) -> None:
    replicas = bench.app.replicas
    log = InternalLog(
        replicas, T0, blocking=bench.blocking, lead_now=bench.app.groups._rooms.lead_now
    )
    partition = replicas.partition(T0)
    for level in Authority:
        partition.granted = level
        assert log.has_zookeeper_lease is (level >= NEEDED["requests of group members"])
        assert log.has_leader_lease is (level >= NEEDED["OffsetFetch"])
        try:
            log.append([KeyValue(b"k", b"v")], NOW_MS)
            appended = True
        except BrokerError:
            appended = False
        assert appended is (level >= NEEDED["Produce with acks=all"])
