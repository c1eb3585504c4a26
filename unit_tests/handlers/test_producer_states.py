"""Tests of DescribeProducers: the producer state of a partition."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.records.batch import read_header
from pybroker.replication.authority import Authority
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersTopic,
)
from unit_tests.handlers.bench import NOW_MS, Bench, batch, code, the_only


async def describe(bench: Bench, **topics: list[int]) -> list[Any]:
    """Return the results of all partitions, in the order of the request."""
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersTopic(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ]
    )
    answer = await bench.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)
    assert [topic.name for topic in answer.topics] == list(topics)
    found = [row for topic in answer.topics for row in topic.partitions]
    assert [row.partition_index for row in found] == [
        number for numbers in topics.values() for number in numbers
    ]
    return found


async def test_each_producer_is_described_with_its_last_batch(bench: Bench) -> None:
    await bench.create("t")
    await bench.produce("t", batch(b"plain"))
    await bench.produce("t", batch(b"1", b"2", producer=(7, 3, 0)))
    open_transaction = memoryview(bytearray(batch(producer=(9, 0, 5), transactional=True)))
    (partition,) = bench.app.replicas.partitions.values()
    partition.append(open_transaction, read_header(open_transaction), acks=1, now_ms=NOW_MS)
    row = the_only(await describe(bench, t=[0]))
    assert code(row) is ErrorCode.NONE
    assert [
        (
            state.producer_id,
            state.producer_epoch,
            state.last_sequence,
            state.last_timestamp,
            state.coordinator_epoch,
            state.current_txn_start_offset,
        )
        for state in row.active_producers
    ] == [(7, 3, 1, NOW_MS + 1, -1, -1), (9, 0, 5, NOW_MS, -1, 3)]


async def test_a_partition_without_producers(bench: Bench) -> None:
    await bench.create("t")
    await bench.produce("t", batch(b"plain"))
    assert the_only(await describe(bench, t=[0])).active_producers == []


@pytest.mark.parametrize(
    ("topic", "number", "expected"),
    [
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nosuch", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a/b", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_a_partition_that_cannot_be_described_gets_its_error(
    bench: Bench, topic: str, number: int, expected: ErrorCode
) -> None:
    await bench.create("t")
    bad, good = (
        await describe(bench, **{topic: [number], "t": [0]})
        if topic != "t"
        else (await describe(bench, t=[number, 0]))
    )
    assert (code(bad), code(good)) == (expected, ErrorCode.NONE)


async def test_a_replica_that_does_not_lead_answers_too(bench: Bench) -> None:
    await bench.create("t")
    await bench.produce("t", batch(producer=(7, 3, 0)))
    (partition,) = bench.app.replicas.partitions.values()
    partition.granted = Authority.NOTHING
    assert len(the_only(await describe(bench, t=[0])).active_producers) == 1


async def test_a_partition_that_is_named_often_does_not_fill_the_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.handlers.producer_states._PRODUCERS_MAX", 10)
    await bench.create("t")
    for producer_id in range(3):
        await bench.produce("t", batch(b"1", producer=(producer_id, 0, 0)))
    rows = await describe(bench, t=[0] * 100)
    assert [code(row) for row in rows] == [ErrorCode.NONE] * 4 + [ErrorCode.INVALID_REQUEST] * 96
    assert sum(len(row.active_producers) for row in rows) == 12
