"""Tests of CreateTopics, DeleteTopics and InitProducerId with unusual options, nodes and
ZooKeeper failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from unit_tests.handlers.bench import Bench, batch, code, the_only

DELETE_VERSIONS = range(7)
BY_ID = 6


def new(name: str = "t", partitions: int = 1, replicas: int = 1, **fields: Any) -> CreatableTopic:
    configs = fields.pop("configs", {})
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        **fields,
    )


async def create(
    bench: Bench,
    *topics: CreatableTopic,
    version: int = 7,
    validate_only: bool = False,
    timeout_ms: int = 10_000,
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only
    )
    answer = await bench.ask(ApiKey.CREATE_TOPICS, version, request)
    results: list[CreatableTopicResult] = answer.topics
    assert [result.name for result in results] == [topic.name for topic in topics]
    return results


async def delete(
    bench: Bench, *names: str, version: int = 5, timeout_ms: int = 10_000
) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(timeout_ms=timeout_ms)
    if version >= BY_ID:
        request.topics = [DeleteTopicState(name=name) for name in names]
    else:
        request.topic_names = list(names)
    answer = await bench.ask(ApiKey.DELETE_TOPICS, version, request)
    results: list[DeletableTopicResult] = answer.responses
    return results


def existing(bench: Bench) -> set[str]:
    return {path for path in bench.tree.paths() if path.startswith("/brokers/topics/")}


# CreateTopics


async def test_minus_1_means_the_defaults_of_the_broker(tmp_path: Path) -> None:
    async with Bench(tmp_path / "own", properties={"num.partitions": "3"}) as bench:
        result = the_only(await create(bench, new(partitions=-1, replicas=-1)))
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert len(bench.app.metadata.topics["t"].partitions) == 3


async def test_concurrent_creations_create_one_topic(bench: Bench) -> None:
    answers = await asyncio.gather(create(bench, new()), create(bench, new()))
    codes = sorted(code(the_only(results)) for results in answers)
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]


async def test_topic_changes_at_another_broker_are_not_controller(bench: Bench) -> None:
    await bench.create("t")
    await bench.app.controller.stop()
    assert code(the_only(await create(bench, new("other")))) is ErrorCode.NOT_CONTROLLER
    assert code(the_only(await delete(bench, "t"))) is ErrorCode.NOT_CONTROLLER
    assert existing(bench) >= {"/brokers/topics/t"}
    assert "/brokers/topics/other" not in existing(bench)


async def test_a_controller_cut_off_from_zookeeper_returns_the_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.app.lease, "is_valid", False)
    result = the_only(await create(bench, new("other")))
    assert code(result) is ErrorCode.NOT_CONTROLLER
    assert "ZooKeeper does not answer" in (result.error_message or "")


async def test_requests_without_zookeeper_time_out(bench: Bench) -> None:
    await bench.create("t")
    bench.coord.suspend()
    assert code(the_only(await create(bench, new("other")))) is ErrorCode.REQUEST_TIMED_OUT
    assert code(the_only(await delete(bench, "t"))) is ErrorCode.REQUEST_TIMED_OUT
    bench.coord.resume()


# DeleteTopics


async def test_a_deleted_topic_is_removed_from_zookeeper_and_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Bench(tmp_path / "own", clock=clock) as bench:
        await bench.create("t", configs={"file.delete.delay.ms": "1000"})
        await bench.produce("t", batch())
        await delete(bench, "t")
        assert not [path for path in bench.tree.paths() if path.endswith("/t")]
        assert not (bench.home / "t-0").exists()
        assert [path.name for path in bench.home.glob("*-delete")]
        clock.advance(2)
        bench.logs.remove_deleted(clock.wall_ms())
        assert not [path.name for path in bench.home.iterdir() if path.name.startswith("t-0")]


async def delete_states(
    bench: Bench, *states: DeleteTopicState
) -> list[tuple[ErrorCode, str | None]]:
    request = DeleteTopicsRequest(topics=list(states), timeout_ms=10_000)
    answer = await bench.ask(ApiKey.DELETE_TOPICS, BY_ID, request)
    return [(code(result), result.name) for result in answer.responses]


async def test_a_topic_whose_node_is_damaged_can_be_deleted_by_its_id(
    bench: Bench,
) -> None:
    await bench.create("t")
    await bench.create("damaged")
    known = bench.app.metadata.topics["damaged"].topic_id
    await bench.coord.set(paths.topic("damaged"), b"{}")
    damaged, good = await delete_states(
        bench, DeleteTopicState(topic_id=known), DeleteTopicState(name="t")
    )
    assert (damaged[0], good[0]) == (ErrorCode.NONE, ErrorCode.NONE)


async def test_a_topic_named_once_by_name_and_once_by_id_is_deleted_once(bench: Bench) -> None:
    await bench.create("t")
    known = bench.app.metadata.topics["t"].topic_id
    results = await delete_states(
        bench, DeleteTopicState(name="t"), DeleteTopicState(topic_id=known)
    )
    assert [result[0] for result in results] in (
        [ErrorCode.NONE, ErrorCode.NONE],
        [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST],
    )


@pytest.mark.parametrize("version", DELETE_VERSIONS)
async def test_disabled_deletion_is_error_73_or_42(tmp_path: Path, version: int) -> None:
    properties = {"delete.topic.enable": "false"}
    async with Bench(tmp_path / "own", properties=properties) as bench:
        await bench.create("t")
        result = the_only(await delete(bench, "t", version=version))
        late = version >= 3
        expected = ErrorCode.TOPIC_DELETION_DISABLED if late else ErrorCode.INVALID_REQUEST
        assert code(result) is expected
        assert "t" in bench.app.metadata.topics


# InitProducerId


async def init(bench: Bench, version: int = 4, **fields: Any) -> InitProducerIdResponse:
    request = InitProducerIdRequest(**{"transactional_id": None, **fields})
    answer: InitProducerIdResponse = await bench.ask(ApiKey.INIT_PRODUCER_ID, version, request)
    return answer


async def test_producer_ids_are_never_allocated_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    seen = []
    for number in range(4):
        async with bench:
            for _ in range(300):
                seen.append((await init(bench)).producer_id)
            if number % 2:
                await bench.crash()
        bench = bench.again()
    assert len(set(seen)) == len(seen)


async def test_without_ids_from_zookeeper_init_producer_id_is_error_15(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.coordinator.transactions.producer_ids.PAUSE_S", 0)
    bench.coord.suspend()
    answer = await init(bench)
    assert (code(answer), answer.producer_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    bench.coord.resume()
    assert code(await init(bench)) is ErrorCode.NONE


async def test_a_damaged_node_of_producer_ids_is_an_error_until_it_is_repaired(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.coord.set(paths.PRODUCER_ID_BLOCK, b"{}")
    answer = await init(bench)
    assert (code(answer), answer.producer_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    assert paths.PRODUCER_ID_BLOCK in caplog.text
    await bench.coord.set(paths.PRODUCER_ID_BLOCK, b"")
    assert code(await init(bench)) is ErrorCode.NONE


async def test_blocks_of_producer_ids_are_stored_as_in_kafka(bench: Bench) -> None:
    await init(bench)
    assert bench.tree.node(paths.PRODUCER_ID_BLOCK) is not None
