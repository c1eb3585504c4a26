"""Tests of ElectLeaders and ControlledShutdown: the error codes, and when the answer comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import TopicAssignment
from pybroker.errors import ErrorCode
from pybroker.model import NO_LEADER, Endpoint, UpdateMetadata
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.control import ControlledShutdownRequest
from pybroker.wire.messages.reassignment import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.handlers.bench import BROKER_ID, LISTENER, Bench, code
from unit_tests.patience import PATIENCE_S

VERSIONS = range(3)
PREFERRED, UNCLEAN = 0, 1
STATE = "/brokers/topics/t/partitions/0/state"
NEEDLESS = ErrorCode.ELECTION_NOT_NEEDED
Results = list[tuple[str, int, ErrorCode]]


async def elect(
    bench: Bench,
    *topics: tuple[str, list[int]],
    version: int = 2,
    election_type: int = PREFERRED,
    timeout_ms: int = 10_000,
    everything: bool = False,
) -> ElectLeadersResponse:
    wanted = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics]
    request = ElectLeadersRequest(
        election_type=election_type,
        topic_partitions=None if everything else wanted,
        timeout_ms=timeout_ms,
    )
    answer: ElectLeadersResponse = await bench.ask(ApiKey.ELECT_LEADERS, version, request)
    return answer


def results(answer: ElectLeadersResponse) -> Results:
    return [
        (topic.topic, each.partition_id, code(each))
        for topic in answer.replica_election_results
        for each in topic.partition_result
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_has_its_code(bench: Bench, version: int) -> None:
    await bench.create("t", partitions=2)
    await bench.create("u")
    answer = await elect(
        bench, ("t", [1, 0, 7, 1]), ("nosuch", [0]), ("u", [0]), ("t", [0]), version=version
    )
    assert answer.error_code == ErrorCode.NONE
    assert results(answer) == [
        ("t", 1, NEEDLESS),
        ("t", 0, NEEDLESS),
        ("t", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nosuch", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, NEEDLESS),
    ]
    assert all(
        each.error_message
        for topic in answer.replica_election_results
        for each in topic.partition_result
    )


@pytest.fixture
async def other(bench: Bench) -> AsyncIterator[MemoryCoord]:
    """The session of broker 2, which exists only as a registration."""
    coord = MemoryCoord(bench.tree, name="other")
    await coord.start()
    yield coord
    await coord.close()


async def register(coord: MemoryCoord) -> None:
    data = schemas.encode_broker((Endpoint(LISTENER, "127.0.0.1", 1),), None, 0)
    await coord.create(paths.broker(2), data, ephemeral=True)


async def displaced(bench: Bench, other: MemoryCoord) -> None:
    """Let broker 1 lead t-0. Broker 2, the preferred leader, has returned and is in sync."""
    topic = TopicAssignment({0: (2, BROKER_ID)})
    await bench.coord.create(paths.topic("t"), schemas.encode_topic(topic))
    await led_by(bench, BROKER_ID)
    await register(other)
    view = bench.app.metadata
    assert await view.wait_until(lambda: 2 in view.brokers, PATIENCE_S)
    data, _ = await bench.coord.get(STATE)
    state = schemas.decode_state(STATE, data)
    await bench.coord.set(STATE, schemas.encode_state(replace(state, isr=(1, 2)), data))


async def led_by(bench: Bench, leader: int) -> None:
    def is_so() -> bool:
        topic = bench.app.metadata.topic("t")
        return topic is not None and topic.partitions[0].state.leader == leader

    assert await bench.app.metadata.wait_until(is_so, PATIENCE_S)


@pytest.mark.parametrize("version", VERSIONS)
async def test_elect_leaders_is_answered_when_the_metadata_has_the_new_leader(
    bench: Bench, other: MemoryCoord, version: int
) -> None:
    await displaced(bench, other)
    answer = await elect(bench, ("t", [0]), version=version)
    assert results(answer) == [("t", 0, ErrorCode.NONE)]
    assert answer.replica_election_results[0].partition_result[0].error_message is None
    topic = bench.app.metadata.topic("t")
    assert topic is not None
    assert topic.partitions[0].state.leader == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_election_for_all_partitions_returns_only_those_that_needed_one(
    bench: Bench, other: MemoryCoord, version: int
) -> None:
    await bench.create("u", partitions=2)
    assert results(await elect(bench, everything=True, version=version)) == []
    await displaced(bench, other)
    answer = await elect(bench, everything=True, version=version)
    assert results(answer) == [("t", 0, ErrorCode.NONE)]


async def test_an_election_continues_after_the_time_limit(bench: Bench, other: MemoryCoord) -> None:
    await displaced(bench, other)
    answer = await elect(bench, ("t", [0]), timeout_ms=0)
    assert results(answer) == [("t", 0, ErrorCode.REQUEST_TIMED_OUT)]
    await led_by(bench, 2)


async def test_a_leader_missing_from_the_metadata_in_time_is_a_timeout(
    bench: Bench, other: MemoryCoord, monkeypatch: pytest.MonkeyPatch
) -> None:
    await displaced(bench, other)
    held: list[UpdateMetadata] = []
    monkeypatch.setattr(bench.app.metadata, "apply", held.append)
    answer = await elect(bench, ("t", [0]), timeout_ms=50)
    assert results(answer) == [("t", 0, ErrorCode.REQUEST_TIMED_OUT)]
    monkeypatch.undo()
    for command in held:
        bench.app.metadata.apply(command)
    await led_by(bench, 2)


async def test_only_an_unclean_election_elects_a_replica_out_of_sync(
    bench: Bench, other: MemoryCoord
) -> None:
    await displaced(bench, other)
    assert results(await elect(bench, ("t", [0]))) == [("t", 0, ErrorCode.NONE)]
    data, _ = await bench.coord.get(STATE)
    state = schemas.decode_state(STATE, data)
    await bench.coord.set(STATE, schemas.encode_state(replace(state, isr=(2,)), data))
    answer = await elect(bench, ("t", [0]), election_type=UNCLEAN)
    assert results(answer) == [("t", 0, NEEDLESS)]
    await other.close()
    await led_by(bench, NO_LEADER)
    answer = await elect(bench, ("t", [0]))
    assert results(answer) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    answer = await elect(bench, ("t", [0]), election_type=UNCLEAN)
    assert results(answer) == [("t", 0, ErrorCode.NONE)]
    await led_by(bench, BROKER_ID)


@pytest.mark.parametrize("version", VERSIONS)
async def test_elect_leaders_at_another_broker_is_not_controller(
    bench: Bench, version: int
) -> None:
    await bench.create("t")
    await bench.app.controller.stop()
    answer = await elect(bench, ("t", [0]), ("u", [3]), version=version)
    assert results(answer) == [
        ("t", 0, ErrorCode.NOT_CONTROLLER),
        ("u", 3, ErrorCode.NOT_CONTROLLER),
    ]


async def test_an_unknown_type_of_election_is_refused(bench: Bench) -> None:
    answer = await elect(bench, ("t", [0]), election_type=2)
    assert (answer.error_code, results(answer)) == (ErrorCode.INVALID_REQUEST, [])


async def shutdown(
    bench: Bench, broker: int, *, epoch: int | None = None, **options: Any
) -> tuple[ErrorCode, list[str]]:
    if epoch is None:
        term = bench.app.controller._term
        known = None if term is None else term.context.brokers.get(broker)
        epoch = 0 if known is None else known.epoch
    request = ControlledShutdownRequest(broker_id=broker, broker_epoch=epoch)
    answer = await bench.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, request, **options)
    remaining = [
        f"{each.topic_name}-{each.partition_index}" for each in answer.remaining_partitions
    ]
    return code(answer), remaining


async def test_controlled_shutdown_returns_the_remaining_partitions(
    bench: Bench, other: MemoryCoord
) -> None:
    assert await shutdown(bench, 2) == (ErrorCode.BROKER_NOT_AVAILABLE, [])
    await displaced(bench, other)
    assert await shutdown(bench, 2, epoch=-1) == (ErrorCode.STALE_BROKER_EPOCH, [])
    assert await shutdown(bench, 2, epoch=2**62) == (ErrorCode.STALE_BROKER_EPOCH, [])
    assert await shutdown(bench, BROKER_ID) == (ErrorCode.NONE, [])
    assert await shutdown(bench, 2) == (ErrorCode.NONE, ["t-0"])
    await bench.app.controller.stop()
    assert await shutdown(bench, 2) == (ErrorCode.NOT_CONTROLLER, [])


async def test_clients_may_not_send_controlled_shutdown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {
        "listeners": "CLIENTS://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }
    async with Bench(tmp_path, properties=properties) as bench:
        refused = await shutdown(bench, BROKER_ID, listener="CLIENTS")
        assert refused == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        (line,) = [each for each in caplog.messages if "inter.broker.listener.name" in each]
        assert "listener=CLIENTS" in line
        for _ in range(50):
            await shutdown(bench, BROKER_ID, listener="CLIENTS")
        assert sum("inter.broker.listener.name" in each for each in caplog.messages) == 10
        assert await shutdown(bench, BROKER_ID) == (ErrorCode.NONE, [])
