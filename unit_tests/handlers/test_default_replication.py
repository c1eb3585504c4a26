"""Tests of default.replication.factor: topics that are created without a replication factor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ErrorCode
from pybroker.model import Endpoint
from pybroker.ports import CreateOp
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pybroker.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.handlers.bench import BROKER_ID, LISTENER, Bench, code, the_only

OTHERS = (BROKER_ID + 1, BROKER_ID + 2)


async def bench_of_three(home: Path, **options: str) -> AsyncIterator[Bench]:
    """Return a broker in a cluster with two more registered brokers that never answer."""
    properties = {name.replace("_", "."): value for name, value in options.items()}
    async with Bench(home, properties=properties) as bench:
        others = MemoryCoord(bench.tree, name="others")
        await others.start()
        for broker_id in OTHERS:
            endpoints = (Endpoint(LISTENER, "127.0.0.1", 1),)
            data = schemas.encode_broker(endpoints, None, 0)
            await others.multi([CreateOp(paths.broker(broker_id), data, ephemeral=True)])
        await bench.app.metadata.wait_until(lambda: len(bench.app.metadata.brokers) == 3, 5.0)
        yield bench
        await others.close()


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Bench]:
    async for bench in bench_of_three(
        tmp_path / "own", default_replication_factor="3", num_partitions="4"
    ):
        yield bench


def replicas(bench: Bench, topic: str) -> Mapping[int, tuple[int, ...]]:
    path = paths.topic(topic)
    node = bench.tree.node(path)
    assert node is not None
    return schemas.decode_topic(path, node[0]).replicas


async def create(bench: Bench, partitions: int, factor: int) -> ErrorCode:
    topic = CreatableTopic(name="t", num_partitions=partitions, replication_factor=factor)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
    return code(the_only((await bench.ask(ApiKey.CREATE_TOPICS, 7, request)).topics))


async def test_replication_factor_minus_one_means_the_default(three: Bench) -> None:
    assert await create(three, -1, -1) is ErrorCode.NONE
    found = replicas(three, "t")
    assert sorted(found) == [0, 1, 2, 3]
    assert {frozenset(each) for each in found.values()} == {frozenset({BROKER_ID, *OTHERS})}
    assert {found[number][0] for number in range(3)} == {BROKER_ID, *OTHERS}


@pytest.mark.parametrize("factor", [1, 2])
async def test_a_given_replication_factor_overrides_the_default(three: Bench, factor: int) -> None:
    assert await create(three, 2, factor) is ErrorCode.NONE
    assert [len(each) for each in replicas(three, "t").values()] == [factor, factor]


async def test_an_automatically_created_topic_has_the_default_replication_factor(
    three: Bench,
) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    answer = await three.ask(ApiKey.METADATA, 8, request)
    (topic,) = answer.topics
    assert code(topic) is ErrorCode.NONE
    assert len(topic.partitions) == 4
    assert all(len(each.replica_nodes) == 3 for each in topic.partitions)
    assert {len(each) for each in replicas(three, "t").values()} == {3}


async def test_a_default_above_the_number_of_brokers_creates_no_topic(tmp_path: Path) -> None:
    async for bench in bench_of_three(tmp_path / "own", default_replication_factor="4"):
        assert await create(bench, -1, -1) is ErrorCode.INVALID_REPLICATION_FACTOR
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        (topic,) = (await bench.ask(ApiKey.METADATA, 8, request)).topics
        assert code(topic) is ErrorCode.INVALID_REPLICATION_FACTOR
        assert bench.tree.node(paths.topic("t")) is None
