"""Tests of CreatePartitions: the error codes, and when the answer comes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, code, the_only

VERSIONS = range(4)


def larger(
    name: str = "t", count: int = 3, assignments: list[list[int]] | None = None
) -> CreatePartitionsTopic:
    rows = None
    if assignments is not None:
        rows = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    return CreatePartitionsTopic(name=name, count=count, assignments=rows)


async def grow(
    bench: Bench,
    *topics: CreatePartitionsTopic,
    version: int = 3,
    validate_only: bool = False,
    timeout_ms: int = 10_000,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(
        topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only
    )
    answer = await bench.ask(ApiKey.CREATE_PARTITIONS, version, request)
    results: list[CreatePartitionsTopicResult] = answer.results
    assert [result.name for result in results] == [topic.name for topic in topics]
    return results


def partitions(bench: Bench, name: str = "t") -> int:
    return len(bench.app.metadata.topics[name].partitions)


@pytest.mark.parametrize("version", VERSIONS)
async def test_new_partitions_have_leaders_when_the_request_is_answered(
    bench: Bench, version: int
) -> None:
    await bench.create("t")
    await bench.produce("t", batch(b"old"))
    result = the_only(await grow(bench, larger(count=3), version=version))
    assert (code(result), result.error_message) == (ErrorCode.NONE, None)
    for partition in range(3):
        assert code(await bench.produce("t", batch(), partition=partition)) is ErrorCode.NONE
    assert (await bench.fetch("t", 0)).high_watermark == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_validate_only_changes_nothing(bench: Bench, version: int) -> None:
    await bench.create("t")
    good, same = await grow(
        bench, larger(count=3), larger("u", 1), version=version, validate_only=True, timeout_ms=0
    )
    assert (code(good), code(same)) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert partitions(bench) == 1


async def test_an_explicit_assignment_is_stored(bench: Bench) -> None:
    await bench.create("t")
    result = the_only(await grow(bench, larger(count=3, assignments=[[BROKER_ID]] * 2)))
    assert code(result) is ErrorCode.NONE
    assert partitions(bench) == 3


@pytest.mark.parametrize(
    ("topic", "expected", "words"),
    [
        (
            larger("nosuch"),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'nosuch' does not exist.",
        ),
        (
            larger("a/b"),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'a/b' does not exist.",
        ),
        (
            larger(count=1),
            ErrorCode.INVALID_PARTITIONS,
            "Topic currently has 2 partitions, which is higher than the requested 1.",
        ),
        (larger(count=2), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partitions."),
        (
            larger(count=-1),
            ErrorCode.INVALID_PARTITIONS,
            "Topic currently has 2 partitions, which is higher than the requested -1.",
        ),
        (larger(count=10_001), ErrorCode.INVALID_PARTITIONS, "10000"),
        (
            larger(count=3, assignments=[[7]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unknown broker(s) in replica assignment: 7.",
        ),
        (
            larger(count=3, assignments=[]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Increasing the number of partitions by 1 but 0 assignments provided.",
        ),
        (
            larger(count=3, assignments=[[1], [1]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Increasing the number of partitions by 1 but 2 assignments provided.",
        ),
        (
            larger(count=3, assignments=[[1, 1]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Duplicate brokers not allowed in replica assignment: 1, 1 for partition id 2.",
        ),
        (
            larger(count=3, assignments=[[]]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Cannot have replication factor of 0 for partition id 2.",
        ),
    ],
)
async def test_an_invalid_request_is_rejected(
    bench: Bench, topic: CreatePartitionsTopic, expected: ErrorCode, words: str
) -> None:
    await bench.create("t", 2)
    result = the_only(await grow(bench, topic))
    assert code(result) is expected
    assert words in (result.error_message or "")
    assert partitions(bench) == 2


async def test_internal_topics_cannot_be_expanded(bench: Bench) -> None:
    """Otherwise a group would map to a partition that does not have its records."""
    await bench.create("__consumer_offsets", 2)
    result = the_only(await grow(bench, larger("__consumer_offsets", 3)))
    assert code(result) is ErrorCode.INVALID_PARTITIONS
    assert partitions(bench, "__consumer_offsets") == 2


async def test_each_topic_has_its_own_result(bench: Bench) -> None:
    await bench.create("t")
    await bench.create("u")
    results = await grow(bench, larger("t", 2), larger("nosuch", 2), larger("u", 2), larger("u", 3))
    assert [code(result) for result in results] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert results[2].error_message == "Duplicate topic in request."
    assert (partitions(bench, "t"), partitions(bench, "u")) == (2, 1)


async def test_a_topic_that_is_being_deleted_is_not_expanded(bench: Bench) -> None:
    await bench.create("t")
    gate = bench.blocking.hold()
    deletion = asyncio.ensure_future(bench.ask(ApiKey.DELETE_TOPICS, 5, Bench.delete_request("t")))
    await gate.reached.wait()
    result = the_only(await grow(bench, larger()))
    assert code(result) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.error_message == "The topic is queued for deletion."
    gate.open.set()
    assert code(the_only((await deletion).responses)) is ErrorCode.NONE


async def test_create_partitions_at_another_broker_is_not_controller(bench: Bench) -> None:
    await bench.create("t")
    await bench.app.controller.stop()
    results = await grow(bench, larger("t"), larger("nosuch"))
    assert [code(result) for result in results] == [ErrorCode.NOT_CONTROLLER] * 2
    assert partitions(bench) == 1


async def test_concurrent_expansions_of_a_topic_build_on_each_other(bench: Bench) -> None:
    await bench.create("t")
    first, second = await asyncio.gather(grow(bench, larger(count=2)), grow(bench, larger(count=3)))
    assert code(second[0]) is ErrorCode.NONE
    assert code(first[0]) in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS)
    assert partitions(bench) == 3


async def test_a_zero_timeout_is_answered_at_once(tmp_path: Path) -> None:
    async with Bench(tmp_path / "own", clock=ManualClock()) as bench:
        await bench.create("t")
        result = the_only(await grow(bench, larger(), timeout_ms=0))
        assert code(result) is ErrorCode.REQUEST_TIMED_OUT
        await bench.app.metadata.wait_until(lambda: partitions(bench) == 3, 5)


async def test_a_topic_with_a_malformed_node_does_not_delay_others(bench: Bench) -> None:
    await bench.create("t")
    await bench.create("damaged")
    await bench.coord.set(paths.topic("damaged"), b"{}")
    good, damaged = await grow(bench, larger("t"), larger("damaged"))
    assert (code(good), code(damaged)) == (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert paths.topic("damaged") in str(damaged.error_message)
