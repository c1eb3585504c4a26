"""Tests that after a leader change the consumer asks for the end of its epochs, and returns to
the offset where the log differs from the records it read (KIP-320)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.client.consumer import Consumer
from pybroker.client.epoch_lookup import EpochEnd
from pybroker.client.errors import LogTruncated
from pybroker.client.fetched import begin_data
from pybroker.client.position_check import divergence
from pybroker.client.subscription import PartitionReader
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import read_header, stamp
from pybroker.records.builder import BatchBuilder
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchRequest
from pybroker.wire.messages.list_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from unit_tests.client.fake_broker import LOSE_ANSWER, FakeBroker
from unit_tests.client.held_logs import QUICK, T0, values
from unit_tests.patience import PATIENCE_S

READ = [b"0", b"1", b"2", b"3", b"4", b"5"]


def consumer(broker: FakeBroker, **options: Any) -> Consumer:
    return Consumer(broker.address, **{**QUICK, "auto_offset_reset": "earliest", **options})


def batch(value: bytes, *, epoch: int = 7, base: int = 0) -> bytes:
    builder = BatchBuilder()
    builder.append(1_000, b"k", value)
    data = bytearray(builder.build())
    stamp(data, 0, base, epoch)
    return bytes(data)


def is_led_anew(broker: FakeBroker, *answers: tuple[int, int] | ErrorCode) -> None:
    """Set the leader epoch to 9. For requests about earlier epochs the broker gives these answers
    one after the other, and then repeats the last one. Epoch 9 ends at the broker's log end."""
    broker.leader_epoch = 9
    rest = list(answers)

    def answer(request: Any) -> OffsetForLeaderEpochResponse:
        (topic,) = request.topics
        (asked,) = topic.partitions
        found: tuple[int, int] | ErrorCode
        if asked.leader_epoch == broker.leader_epoch:
            found = broker.leader_epoch, broker.partition().end
        else:
            found = rest.pop(0) if len(rest) > 1 else rest[0]
        row = EpochEndOffset(partition=0)
        if isinstance(found, ErrorCode):
            row.error_code = found
        else:
            row.leader_epoch, row.end_offset = found
        result = OffsetForLeaderTopicResult(topic=topic.topic, partitions=[row])
        return OffsetForLeaderEpochResponse(topics=[result])

    broker.handlers[ApiKey.OFFSET_FOR_LEADER_EPOCH] = answer
    broker.partition_faults.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def cut(broker: FakeBroker, offset: int, *values: bytes) -> None:
    """Truncate the log to that number of records, each in its own batch, and append other records
    in the present leader epoch."""
    log = broker.partition()
    log.batches, log.end = log.batches[:offset], offset
    for value in values:
        log.append(batch(value), broker.leader_epoch)


def questions(broker: FakeBroker) -> list[int]:
    """Return the epochs that were requested."""
    return [
        row.leader_epoch
        for request in broker.requests(OffsetForLeaderEpochRequest)
        if isinstance(request, OffsetForLeaderEpochRequest)
        for topic in request.topics
        for row in topic.partitions
    ]


async def having_read(broker: FakeBroker, target: Consumer) -> None:
    for value in READ:
        broker.partition().append(batch(value))
    target.assign([T0])
    target.seek(T0, 0)
    assert await values(target, len(READ)) == READ


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_records_that_replace_lost_ones_are_read(policy: str) -> None:
    """The option auto.offset.reset decides only whether an error is raised."""
    async with FakeBroker({"t": 1}) as broker, consumer(broker, auto_offset_reset=policy) as target:
        await having_read(broker, target)
        is_led_anew(broker, (7, 4))
        cut(broker, 4, b"new 4", b"new 5", b"new 6")
        assert await values(target, 3) == [b"new 4", b"new 5", b"new 6"]
        assert await target.position(T0) == 7


async def test_without_a_policy_it_is_an_error_that_tells_where_to_go() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, auto_offset_reset="none") as target:
        await having_read(broker, target)
        is_led_anew(broker, (7, 4))
        cut(broker, 4, b"new 4")
        with pytest.raises(LogTruncated, match="seek to 4") as caught:
            await values(target, 1)
        assert (caught.value.position, caught.value.offset) == (6, 4)
        target.seek(T0, caught.value.offset)
        assert await values(target, 1) == [b"new 4"]


async def test_nothing_is_lost_and_every_leader_is_asked_once() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        await having_read(broker, target)
        assert questions(broker) == [], "the leader that gave it has it"
        is_led_anew(broker, (7, 6))
        for number in range(6, 9):
            broker.partition().append(batch(b"%d" % number), 9)
            assert await values(target, 1) == [b"%d" % number]
        assert questions(broker) == [7]


async def test_prefetched_records_that_are_gone_are_not_returned() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        for value in READ:
            broker.partition().append(batch(value))
        target.assign([T0])
        assert await values(target, 2) == READ[:2]
        await broker.until(lambda: len(READ) in fetched_from(broker))
        is_led_anew(broker, (7, 4))
        cut(broker, 4, b"new 4")
        async with asyncio.timeout(PATIENCE_S):
            await broker.until(lambda: 2 in fetched_from(broker))
        assert await values(target, 3) == [b"2", b"3", b"new 4"]


def fetched_from(broker: FakeBroker) -> list[int]:
    return [
        row.fetch_offset
        for request in broker.requests(FetchRequest)
        if isinstance(request, FetchRequest)
        for topic in request.topics
        for row in topic.partitions
    ]


async def test_a_leader_that_does_not_answer_is_asked_again() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        await having_read(broker, target)
        fenced = ErrorCode.FENCED_LEADER_EPOCH
        is_led_anew(broker, fenced, fenced, (7, 4))
        broker.will(ApiKey.OFFSET_FOR_LEADER_EPOCH, LOSE_ANSWER)
        cut(broker, 4, b"new 4", b"new 5", b"new 6")
        assert await values(target, 1) == [b"new 4"]
        assert questions(broker) == [7, 7, 7]


@pytest.mark.parametrize("answer", [(-1, -1), (7, -1)])
async def test_a_leader_that_does_not_know_is_believed_by_its_fetch(
    answer: tuple[int, int],
) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        await having_read(broker, target)
        is_led_anew(broker, answer)
        broker.partition().append(batch(b"6"), 9)
        assert await values(target, 1) == [b"6"]


async def test_a_broker_that_refuses_the_question_is_read_on_from() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        await having_read(broker, target)
        is_led_anew(broker, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        broker.partition().append(batch(b"6"), 9)
        assert await values(target, 1) == [b"6"]


def reader_of(*epochs: int) -> PartitionReader:
    """Return a reader that has fetched a record of each of these leader epochs, from offset 0
    on."""
    reader = PartitionReader(TopicPartition("t", 0))
    reader.jump(0)
    for offset, epoch in enumerate(epochs):
        data = batch(b"x", epoch=epoch, base=offset)
        assert read_header(data).leader_epoch == epoch
        assert reader.add(begin_data(data, []))
    return reader


@pytest.mark.parametrize(
    ("read", "end", "expected"),
    [
        ((5, 5, 6, 6), EpochEnd(6, 4), None),
        ((5, 5, 6, 6), EpochEnd(6, 9), None),
        ((5, 5, 6, 6), EpochEnd(6, 3), 3),
        ((5, 5, 6, 6), EpochEnd(5, 2), 2),
        # There epoch 5 goes on where epoch 6 began here: all records of epoch 6 are gone.
        ((5, 5, 6, 6), EpochEnd(5, 3), 2),
        ((5, 5, 6, 6), EpochEnd(5, 9), 2),
        ((4, 5, 6, 6), EpochEnd(4, 3), 1),
        ((5, 5, 6, 6), EpochEnd(-1, -1), None),
        ((6, 6), EpochEnd(5, 1), 0),
    ],
)
def test_divergence_is_found_by_the_end_of_the_epoch(
    read: tuple[int, ...], end: EpochEnd, expected: int | None
) -> None:
    assert divergence(reader_of(*read), end) == expected
