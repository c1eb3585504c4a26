"""Tests of DescribeLogDirs and AlterReplicaLogDirs: a result for each partition, and a broker
that continues with its remaining directories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from unit_tests.handlers.bench import Bench, Gate, batch, code
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S, in_time, until

VERSIONS = range(3)
T0 = TopicPartition("t", 0)


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[Bench]:
    """Return a broker with three log directories, and a topic that has a partition in each of
    them."""
    paths = ",".join(str(tmp_path / name) for name in "abc")
    async with Bench(tmp_path, properties={"log.dirs": paths}) as bench:
        await bench.create("t", 3)
        yield bench


def path_of(bench: Bench, name: str) -> str:
    return str(Path(bench.logs.directories[0]).parent / name)


async def alter(bench: Bench, *wishes: tuple[str, str, list[int]], version: int = 2) -> list[int]:
    """Request moves, each (directory, topic, partitions). Return the codes in the order of the
    answer."""
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=partitions)]
            )
            for path, topic, partitions in wishes
        ]
    )
    answer = await bench.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, request)
    return [item.error_code for row in answer.results for item in row.partitions]


async def describe(
    bench: Bench, topics: list[DescribableLogDirTopic] | None = None, version: int = 2
) -> dict[str, tuple[int, list[str]]]:
    request = DescribeLogDirsRequest(topics=topics)
    answer = await bench.ask(ApiKey.DESCRIBE_LOG_DIRS, version, request)
    return {
        Path(row.log_dir).name: (
            row.error_code,
            [
                f"{topic.name}-{item.partition_index}"
                for topic in row.topics
                for item in topic.partitions
            ],
        )
        for row in answer.results
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_directory_lists_its_partitions(disks: Bench, version: int) -> None:
    everything = {"a": (0, ["t-0"]), "b": (0, ["t-1"]), "c": (0, ["t-2"])}
    assert await describe(disks, None, version) == everything
    some = [
        DescribableLogDirTopic(topic="t", partitions=[1, 7]),
        DescribableLogDirTopic(topic="unknown", partitions=[0]),
    ]
    assert await describe(disks, some, version) == {"a": (0, []), "b": (0, ["t-1"]), "c": (0, [])}
    assert await describe(disks, [], version) == dict.fromkeys("abc", (0, []))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_replica_moves_and_is_served(disks: Bench, version: int) -> None:
    await disks.produce("t", batch(b"one"))
    assert await alter(disks, (path_of(disks, "c"), "t", [0]), version=version) == [0]
    while disks.logs.home(T0) != path_of(disks, "c") or disks.logs.moves.current:
        assert code(await disks.produce("t", batch(b"more"))) is ErrorCode.NONE
        await asyncio.sleep(0)
    assert code(await disks.produce("t", batch(b"last"))) is ErrorCode.NONE
    end = disks.app.replicas.partition(T0).log.log_end_offset
    assert (await disks.fetch("t", 0)).high_watermark == end >= 2


async def test_a_replica_can_move_again_while_its_move_is_being_finished(
    disks: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At that time the old directory still exists, and the second move leads back to its path."""
    run, gate = disks.blocking.run, Gate()

    def held(function: Callable[..., Any], *args: object) -> Awaitable[Any]:
        if function == disks.logs.moves.finish and not gate.reached.is_set():
            return disks.blocking.run_behind(gate, function, *args)
        return run(function, *args)

    monkeypatch.setattr(disks.blocking, "run", held)
    await disks.produce("t", batch(b"one"))
    assert await alter(disks, (path_of(disks, "c"), "t", [0])) == [0]
    await gate.reached.wait()
    back = asyncio.create_task(alter(disks, (path_of(disks, "a"), "t", [0])))
    await idle()
    gate.open.set()
    assert await back == [0]
    async with asyncio.timeout(PATIENCE_S):
        while disks.logs.moves.current:
            assert code(await disks.produce("t", batch(b"more"))) is ErrorCode.NONE
            await asyncio.sleep(0)
    assert disks.logs.home(T0) == path_of(disks, "a")
    end = disks.app.replicas.partition(T0).log.log_end_offset
    assert (await disks.fetch("t", 0)).high_watermark == end >= 1


async def test_a_replica_moves_though_the_client_goes_away_while_its_move_begins(
    disks: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate = disks.blocking.run, Gate()

    def held(function: Callable[..., Any], *args: object) -> Awaitable[Any]:
        if function == disks.logs.moves.begin:  # a thread goes on after a cancellation
            return asyncio.shield(disks.blocking.run_behind(gate, function, *args))
        return run(function, *args)

    monkeypatch.setattr(disks.blocking, "run", held)
    await disks.produce("t", batch(b"one"))
    request = asyncio.create_task(alter(disks, (path_of(disks, "c"), "t", [0])))
    await gate.reached.wait()
    request.cancel()
    await asyncio.wait([request])
    gate.open.set()
    await until(lambda: disks.logs.home(T0) == path_of(disks, "c") and not disks.logs.moves.current)


async def test_a_later_request_replaces_all_moves_of_an_earlier_request(
    disks: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later request arrives while the earlier one begins the first of its two moves."""
    run, gate = disks.blocking.run, Gate()

    def held(function: Callable[..., Any], *args: object) -> Awaitable[Any]:
        if function == disks.logs.moves.begin and not gate.reached.is_set():
            return disks.blocking.run_behind(gate, function, *args)
        return run(function, *args)

    monkeypatch.setattr(disks.blocking, "run", held)
    a, b, c = (path_of(disks, name) for name in "abc")
    earlier = asyncio.create_task(alter(disks, (c, "t", [1, 0])))
    await gate.reached.wait()
    later = asyncio.create_task(alter(disks, (b, "t", [0]), (a, "t", [2])))
    await idle()
    gate.open.set()
    assert await earlier == [0, 0]
    assert await later == [0, 0]
    await until(lambda: not disks.logs.moves.current)
    assert [disks.logs.home(TopicPartition("t", number)) for number in range(3)] == [b, c, a]


@pytest.mark.parametrize(
    ("directory", "topic", "partition", "expected"),
    [
        ("/nowhere", "t", 0, ErrorCode.LOG_DIR_NOT_FOUND),
        ("a", "t", 0, ErrorCode.NONE),
        ("a", "t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", "later", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("/nowhere", "later", 0, ErrorCode.LOG_DIR_NOT_FOUND),
        ("a", "x" * 220, 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", "t", 0, ErrorCode.LOG_DIR_NOT_FOUND),
    ],
)
async def test_each_replica_of_a_move_gets_its_code(
    disks: Bench, directory: str, topic: str, partition: int, expected: ErrorCode
) -> None:
    path = path_of(disks, directory) if directory in ("a", "b") else directory
    other = (path_of(disks, "b"), "t", [1])
    assert await alter(disks, (path, topic, [partition]), other) == [expected, ErrorCode.NONE]


async def test_an_assigned_directory_is_used_for_a_partition_created_later(disks: Bench) -> None:
    await alter(disks, (path_of(disks, "c"), "later", [0]))
    await disks.create("later")
    assert disks.logs.home(TopicPartition("later", 0)) == path_of(disks, "c")


async def test_requested_directories_and_their_log_lines_are_limited(
    disks: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.storage.relocation.REQUESTS_MAX", 100)
    numbers = list(range(1000))
    assert set(await alter(disks, (path_of(disks, "c"), "later", numbers))) == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert caplog.text.count("replica not moved") <= 20
    moves = disks.logs.moves
    kept = [
        each for each in numbers if moves.take_request(TopicPartition("later", each)) is not None
    ]
    assert kept == numbers[-100:]


async def test_a_failed_directory_has_an_error_and_the_others_are_served(disks: Bench) -> None:
    log = disks.logs.log(TopicPartition("t", 1))
    assert log is not None
    log.fail(StorageError("read-only file system"))
    view = disks.app.metadata
    assert await view.wait_until(lambda: view.topics["t"].partitions[1].state.leader == -1, 10)
    assert view.topics["t"].partitions[1].offline_replicas == (disks.app.replicas.broker_id,)
    answers = [code(await disks.produce("t", batch(), partition=number)) for number in range(3)]
    assert answers == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert (await describe(disks))["b"] == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert (
        await alter(disks, (path_of(disks, "b"), "t", [0]), (path_of(disks, "c"), "t", [1]))
        == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    )
    assert await alter(disks, (path_of(disks, "a"), "t", [2])) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert not [p for p in disks.tree.paths() if p.startswith("/log_dir_event_notification/")]
    assert disks.lost == []


async def test_the_last_directory_that_fails_ends_the_broker(disks: Bench) -> None:
    for number in range(3):
        log = disks.logs.log(TopicPartition("t", number))
        assert log is not None
        log.fail(StorageError("broken"))
    await in_time(disks.has_lost.wait())
    assert "all log directories have failed" in disks.lost[0]
