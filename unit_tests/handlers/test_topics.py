"""CreateTopics, DeleteTopics and InitProducerId."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, code, the_only

CREATE_VERSIONS = range(8)
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


def assigned(name: str, *brokers: list[int], **fields: Any) -> CreatableTopic:
    return new(
        name,
        fields.pop("partitions", -1),
        -1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in enumerate(brokers)
        ],
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


@pytest.mark.parametrize("version", CREATE_VERSIONS)
async def test_a_topic_can_be_used_when_the_answer_comes(bench: Bench, version: int) -> None:
    result = the_only(await create(bench, new(partitions=3), version=version))
    assert code(result) is ErrorCode.NONE
    for partition in range(3):
        assert code(await bench.produce("t", batch(), partition=partition)) is ErrorCode.NONE
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
    known = bench.app.metadata.topics["t"].topic_id
    assert result.topic_id == (known if version >= 7 else NO_TOPIC_ID)


@pytest.mark.parametrize("version", [5, 6, 7])
async def test_the_answer_names_every_option_and_its_source(bench: Bench, version: int) -> None:
    topic = new(configs={"retention.ms": "5000"})
    result = the_only(await create(bench, topic, version=version))
    assert result.configs is not None
    options = {option.name: option for option in result.configs}
    assert (options["retention.ms"].value, options["retention.ms"].config_source) == ("5000", 1)
    assert (options["cleanup.policy"].value, options["cleanup.policy"].config_source) == (
        "delete",
        5,
    )
    assert len(options) > 20


@pytest.mark.parametrize("version", CREATE_VERSIONS[1:])
async def test_validate_only_creates_nothing(bench: Bench, version: int) -> None:
    result = the_only(await create(bench, new(), version=version, validate_only=True))
    assert code(result) is ErrorCode.NONE
    assert existing(bench) == set()
    refused = the_only(await create(bench, new(partitions=0), version=version, validate_only=True))
    assert code(refused) is ErrorCode.INVALID_PARTITIONS


async def test_validate_only_finds_what_exists(bench: Bench) -> None:
    await bench.create("t")
    result = the_only(await create(bench, new(), validate_only=True))
    assert code(result) is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("version", CREATE_VERSIONS)
async def test_an_assignment_is_kept(bench: Bench, version: int) -> None:
    topic = assigned("t", [BROKER_ID], [BROKER_ID])
    result = the_only(await create(bench, topic, version=version))
    assert code(result) is ErrorCode.NONE
    assert len(bench.app.metadata.topics["t"].partitions) == 2


async def test_minus_1_means_the_defaults_of_the_broker(tmp_path: Path) -> None:
    async with Bench(tmp_path / "own", properties={"num.partitions": "3"}) as bench:
        result = the_only(await create(bench, new(partitions=-1, replicas=-1)))
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert len(bench.app.metadata.topics["t"].partitions) == 3


REFUSED = {
    "no name": (new(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "bad name": (new("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "dots": (new(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "long name": (new("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "no partitions": (new(partitions=0), ErrorCode.INVALID_PARTITIONS),
    "negative partitions": (new(partitions=-2), ErrorCode.INVALID_PARTITIONS),
    "far too many partitions": (new(partitions=2**31 - 1), ErrorCode.INVALID_PARTITIONS),
    "no replicas": (new(replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "more replicas than brokers": (new(replicas=2), ErrorCode.INVALID_REPLICATION_FACTOR),
    "unknown broker": (assigned("t", [99]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "broker twice": (
        assigned("t", [BROKER_ID, BROKER_ID]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "no brokers": (assigned("t", []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "unlike replicas": (
        assigned("t", [BROKER_ID], [BROKER_ID, 99]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "hole in the assignment": (
        new(
            "t",
            -1,
            -1,
            assignments=[CreatableReplicaAssignment(partition_index=1, broker_ids=[BROKER_ID])],
        ),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "partition assigned twice": (
        new(
            "t",
            -1,
            -1,
            assignments=[
                CreatableReplicaAssignment(partition_index=0, broker_ids=[BROKER_ID]),
                CreatableReplicaAssignment(partition_index=0, broker_ids=[BROKER_ID]),
            ],
        ),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "assignment and count": (
        new(
            partitions=1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[BROKER_ID])],
        ),
        ErrorCode.INVALID_REQUEST,
    ),
    "unknown option": (new(configs={"no.such.option": "1"}), ErrorCode.INVALID_CONFIG),
    "bad option": (new(configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
    "null option": (new(configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_topic_that_cannot_be_made_gets_its_code_and_leaves_nothing(
    bench: Bench, name: str
) -> None:
    topic, expected = REFUSED[name]
    for version in CREATE_VERSIONS:
        refused, made = await create(bench, topic, new(f"good-{version}"), version=version)
        assert (code(refused), code(made)) == (expected, ErrorCode.NONE)
        assert bool(refused.error_message) == (version >= 1)
    assert bench.app.metadata.topic(topic.name) is None


@pytest.mark.parametrize("version", CREATE_VERSIONS)
async def test_a_topic_that_exists_is_36_and_one_that_collides_17(
    bench: Bench, version: int
) -> None:
    await bench.create("a.b")
    same, alike = await create(bench, new("a.b"), new("a_b"), version=version)
    assert code(same) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert code(alike) is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_that_a_topic_exists_is_said_before_what_is_wrong_with_the_wish(
    bench: Bench,
) -> None:
    """Who makes sure that his topic is there goes on after 36 alone; not after 38, for as long as
    there are fewer brokers than the topic has replicas."""
    await bench.create("t")
    faults = [
        new(replicas=3),
        new(partitions=0),
        new(configs={"no.such.option": "1"}),
        new(configs={"retention.ms": None}),
        assigned("t", [99]),
        assigned("t", [BROKER_ID], partitions=1),
    ]
    for fault in faults:
        for validate_only in (False, True):
            result = the_only(await create(bench, fault, validate_only=validate_only))
            assert code(result) is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("version", CREATE_VERSIONS)
async def test_a_name_given_twice_is_42_for_both(bench: Bench, version: int) -> None:
    results = await create(bench, new("twice"), new("once"), new("twice"), version=version)
    assert [code(result) for result in results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]


async def test_two_clients_make_one_topic(bench: Bench) -> None:
    answers = await asyncio.gather(create(bench, new()), create(bench, new()))
    codes = sorted(code(the_only(results)) for results in answers)
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]


async def test_without_time_to_wait_the_topic_is_made_and_7_answered(bench: Bench) -> None:
    result = the_only(await create(bench, new(), timeout_ms=0))
    assert code(result) is ErrorCode.REQUEST_TIMED_OUT
    assert "/brokers/topics/t" in existing(bench)


async def test_who_is_not_the_controller_says_41(bench: Bench) -> None:
    await bench.create("t")
    await bench.app.controller.stop()
    assert code(the_only(await create(bench, new("other")))) is ErrorCode.NOT_CONTROLLER
    assert code(the_only(await delete(bench, "t"))) is ErrorCode.NOT_CONTROLLER
    assert existing(bench) >= {"/brokers/topics/t"}
    assert "/brokers/topics/other" not in existing(bench)


async def test_zookeeper_being_away_is_a_time_out(bench: Bench) -> None:
    await bench.create("t")
    bench.coord.suspend()
    assert code(the_only(await create(bench, new("other")))) is ErrorCode.REQUEST_TIMED_OUT
    assert code(the_only(await delete(bench, "t"))) is ErrorCode.REQUEST_TIMED_OUT
    bench.coord.resume()


# DeleteTopics


@pytest.mark.parametrize("version", DELETE_VERSIONS)
async def test_a_topic_is_gone_when_the_answer_comes(bench: Bench, version: int) -> None:
    await bench.create("t", 2)
    await bench.create("kept")
    known = bench.app.metadata.topics["t"].topic_id
    result = the_only(await delete(bench, "t", version=version))
    assert (code(result), result.name) == (ErrorCode.NONE, "t")
    assert result.topic_id == (known if version >= 6 else NO_TOPIC_ID)
    assert set(bench.app.metadata.topics) == {"kept"}
    produced = await bench.produce("t", batch())
    assert code(produced) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_deleted_topic_goes_from_zookeeper_and_disk(tmp_path: Path) -> None:
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


async def test_a_topic_made_again_is_empty_and_has_another_id(bench: Bench) -> None:
    await bench.create("t")
    before = bench.app.metadata.topics["t"].topic_id
    await bench.produce("t", batch(producer=(7, 0, 5)))
    await delete(bench, "t")
    assert code(the_only(await create(bench, new()))) is ErrorCode.NONE
    assert bench.app.metadata.topics["t"].topic_id != before
    assert (await bench.produce("t", batch(producer=(7, 0, 0)))).base_offset == 0


@pytest.mark.parametrize("version", DELETE_VERSIONS)
async def test_an_unknown_name_is_3_and_does_not_hold_up_others(bench: Bench, version: int) -> None:
    await bench.create("t")
    results = await delete(bench, "missing", "t", "bad/name", version=version)
    assert [(result.name, code(result)) for result in results] == [
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ErrorCode.NONE),
        ("bad/name", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("version", DELETE_VERSIONS)
async def test_a_name_to_delete_given_twice_is_42(bench: Bench, version: int) -> None:
    await bench.create("t")
    results = await delete(bench, "t", "t", version=version)
    assert [code(result) for result in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert "t" in bench.app.metadata.topics


async def delete_states(
    bench: Bench, *states: DeleteTopicState
) -> list[tuple[ErrorCode, str | None]]:
    request = DeleteTopicsRequest(topics=list(states), timeout_ms=10_000)
    answer = await bench.ask(ApiKey.DELETE_TOPICS, BY_ID, request)
    return [(code(result), result.name) for result in answer.responses]


async def test_version_6_deletes_by_id_and_answers_100_for_an_unknown_one(bench: Bench) -> None:
    await bench.create("t")
    known = bench.app.metadata.topics["t"].topic_id
    states = [DeleteTopicState(topic_id=uuid.UUID(int=5)), DeleteTopicState(topic_id=known)]
    assert await delete_states(bench, *states) == [
        (ErrorCode.UNKNOWN_TOPIC_ID, None),
        (ErrorCode.NONE, "t"),
    ]
    assert bench.app.metadata.topics == {}


async def test_a_topic_whose_node_is_damaged_does_not_hold_up_the_deletion_of_others(
    bench: Bench,
) -> None:
    await bench.create("t")
    await bench.create("damaged")
    known = bench.app.metadata.topics["damaged"].topic_id
    await bench.coord.set(paths.topic("damaged"), b"{}")
    damaged, good = await delete_states(
        bench, DeleteTopicState(topic_id=known), DeleteTopicState(name="t")
    )
    assert (damaged[0], good[0]) == (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE)


async def test_a_topic_to_delete_has_a_name_or_an_id(bench: Bench) -> None:
    await bench.create("t")
    known = bench.app.metadata.topics["t"].topic_id
    both = await delete_states(bench, DeleteTopicState(name="t", topic_id=known))
    neither = await delete_states(bench, DeleteTopicState(name=None))
    assert [the_only(both)[0], the_only(neither)[0]] == [ErrorCode.INVALID_REQUEST] * 2
    assert "t" in bench.app.metadata.topics


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
async def test_where_deletion_is_disabled_it_is_73_or_42(tmp_path: Path, version: int) -> None:
    properties = {"delete.topic.enable": "false"}
    async with Bench(tmp_path / "own", properties=properties) as bench:
        await bench.create("t")
        result = the_only(await delete(bench, "t", version=version))
        late = version >= 3
        expected = ErrorCode.TOPIC_DELETION_DISABLED if late else ErrorCode.INVALID_REQUEST
        assert code(result) is expected
        assert "t" in bench.app.metadata.topics


async def test_without_time_to_wait_the_deletion_begins_and_7_is_answered(bench: Bench) -> None:
    await bench.create("t")
    result = the_only(await delete(bench, "t", timeout_ms=0))
    assert code(result) is ErrorCode.REQUEST_TIMED_OUT
    async with asyncio.timeout(30):
        await bench.app.metadata.wait_until(lambda: not bench.app.metadata.topics, 30)
    assert bench.app.metadata.topics == {}


# InitProducerId


async def init(bench: Bench, version: int = 4, **fields: Any) -> InitProducerIdResponse:
    request = InitProducerIdRequest(**{"transactional_id": None, **fields})
    answer: InitProducerIdResponse = await bench.ask(ApiKey.INIT_PRODUCER_ID, version, request)
    return answer


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**31 - 1])
async def test_without_a_transactional_id_the_timeout_does_not_matter(
    bench: Bench, timeout_ms: int
) -> None:
    for version in range(5):
        answer = await init(bench, version, transaction_timeout_ms=timeout_ms)
        assert (code(answer), answer.producer_epoch) == (ErrorCode.NONE, 0)
        assert answer.producer_id >= 0


async def test_ids_are_never_given_twice_also_over_restarts(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(
    ("transactional_id", "expected"),
    [("tx", ErrorCode.COORDINATOR_NOT_AVAILABLE), ("", ErrorCode.INVALID_REQUEST)],
)
async def test_a_transactional_id_is_15_and_an_empty_one_42(
    bench: Bench, version: int, transactional_id: str, expected: ErrorCode
) -> None:
    answer = await init(bench, version, transactional_id=transactional_id)
    assert (code(answer), answer.producer_id, answer.producer_epoch) == (expected, -1, -1)


async def test_while_zookeeper_gives_no_ids_it_is_15(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.coordinator.transactions.producer_ids.PAUSE_S", 0)
    bench.coord.suspend()
    answer = await init(bench)
    assert (code(answer), answer.producer_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    bench.coord.resume()
    assert code(await init(bench)) is ErrorCode.NONE


async def test_a_damaged_node_of_blocks_is_15_until_somebody_repairs_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.coord.set(paths.PRODUCER_ID_BLOCK, b"{}")
    answer = await init(bench)
    assert (code(answer), answer.producer_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    assert paths.PRODUCER_ID_BLOCK in caplog.text
    await bench.coord.set(paths.PRODUCER_ID_BLOCK, b"")
    assert code(await init(bench)) is ErrorCode.NONE


async def test_blocks_of_ids_stand_where_kafka_has_them(bench: Bench) -> None:
    await init(bench)
    assert bench.tree.node(paths.PRODUCER_ID_BLOCK) is not None
