"""Tests of the creation of topics: each refusal has Kafka's error code, and either both nodes
are created or none."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

import pytest

from pybroker.coordinator.controller import topics
from pybroker.coordinator.controller.deletion import remove_topic
from pybroker.coordinator.controller.writes import FencedWriter
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import Broker, encode_uuid
from pybroker.ports import CoordOp, OpResult
from unit_tests.coordinator.controller.cluster import Cluster

ID = uuid.UUID(int=77)
LIVE = [Broker(1, ()), Broker(2, ())]


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "detail"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
        (-1, 1, ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
        (10_001, 1, ErrorCode.INVALID_PARTITIONS, "10000"),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (
            1,
            3,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor: 3 larger than available brokers: 2.",
        ),
    ],
)
def test_a_plan_with_impossible_numbers_is_refused(
    partitions: int, factor: int, code: ErrorCode, detail: str
) -> None:
    with pytest.raises(BrokerError) as caught:
        topics.plan_assignment(LIVE, partitions, factor, random.Random(1))
    assert caught.value.code is code
    assert detail in caught.value.detail


def test_a_plan_has_the_requested_partitions_and_replicas() -> None:
    plan = topics.plan_assignment(LIVE, 3, 2, random.Random(1))
    assert sorted(plan) == [0, 1, 2]
    assert all(sorted(replicas) == [1, 2] for replicas in plan.values())


@pytest.mark.parametrize(
    ("assignment", "detail"),
    [
        ({}, "no partition"),
        ({1: [1]}, "consecutive"),
        ({0: [1], 2: [1]}, "consecutive"),
        ({0: []}, "no replica"),
        ({0: [1, 1]}, "twice"),
        ({0: [1, 2], 1: [1]}, "same number"),
        ({0: [1, 7]}, "[7]"),
    ],
)
def test_an_invalid_assignment_is_refused(assignment: dict[int, list[int]], detail: str) -> None:
    with pytest.raises(BrokerError) as caught:
        topics.check_assignment(assignment, {1, 2})
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert detail in caught.value.detail


def test_a_valid_assignment_is_returned_unchanged() -> None:
    assert topics.check_assignment({1: [2, 1], 0: [1, 2]}, {1, 2, 3}) == {0: (1, 2), 1: (2, 1)}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a.b", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (".", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("ab", None),
        ("a.c", None),
    ],
)
async def test_names(cluster: Cluster, name: str, code: ErrorCode | None) -> None:
    await topics.create_topic(cluster.tool, "a.b", {0: (1,)}, {}, ID)
    if code is None:
        await topics.check_new_topic(cluster.tool, name)
        return
    with pytest.raises(BrokerError) as caught:
        await topics.create_topic(cluster.tool, name, {0: (1,)}, {}, ID)
    assert caught.value.code is code


async def test_a_created_topic_is_read_as_it_was_stored(cluster: Cluster) -> None:
    await topics.create_topic(
        cluster.tool, "orders", {0: (1, 2), 1: (2, 1)}, {"retention.ms": "5"}, ID
    )
    assert cluster.json("/brokers/topics/orders") == {
        "version": 3,
        "partitions": {"0": [1, 2], "1": [2, 1]},
        "adding_replicas": {},
        "removing_replicas": {},
        "topic_id": encode_uuid(ID),
    }
    assert cluster.json("/config/topics/orders") == {"version": 1, "config": {"retention.ms": "5"}}
    described = await topics.read_topic(cluster.tool, "orders")
    assert (described.topic_id, described.assignment) == (ID, {0: (1, 2), 1: (2, 1)})
    assert await topics.topic_configs(cluster.tool, "orders") == {"retention.ms": "5"}
    assert await topics.topic_names(cluster.tool) == {"orders"}


async def test_a_configuration_without_a_topic_is_replaced(cluster: Cluster) -> None:
    await cluster.write_json("/config/topics/orders", {"version": 1, "config": {"old": "1"}})
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {"new": "2"}, ID)
    assert await topics.topic_configs(cluster.tool, "orders") == {"new": "2"}


@pytest.mark.parametrize("applied", [True, False])
async def test_a_topic_is_created_once_after_a_lost_reply(cluster: Cluster, applied: bool) -> None:
    """The creation reads two nodes before its multi."""
    cluster.tool.countdown, cluster.tool.applied = 2, applied
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    assert cluster.tool.countdown < 0
    assert (await topics.read_topic(cluster.tool, "orders")).topic_id == ID


async def test_creating_a_topic_that_another_client_created_fails(cluster: Cluster) -> None:
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, uuid.UUID(int=78))
    with pytest.raises(BrokerError) as caught:
        await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_second_deletion_request_is_no_error(cluster: Cluster) -> None:
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    await topics.request_deletion(cluster.tool, "orders")
    await topics.request_deletion(cluster.tool, "orders")
    assert cluster.exists(paths.delete_topic("orders"))


async def test_deletion_by_id_keeps_the_recreated_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is kept even if it was deleted and recreated between the read and the request."""
    epoch = await cluster.tool.exists(paths.CONTROLLER_EPOCH)
    if epoch is None:
        await cluster.tool.create(paths.CONTROLLER_EPOCH)
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    multi = cluster.tool.multi

    async def late(ops: Sequence[CoordOp]) -> list[OpResult]:
        monkeypatch.undo()
        assert await remove_topic(cluster.tool, FencedWriter(cluster.tool, 0), "orders", ID)
        await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, uuid.UUID(int=3))
        return await multi(ops)

    monkeypatch.setattr(cluster.tool, "multi", late)
    with pytest.raises(BrokerError) as caught:
        await topics.request_deletion_of(cluster.tool, "orders", ID)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert not cluster.exists(paths.delete_topic("orders"))
    for _ in range(2):
        await topics.request_deletion_of(cluster.tool, "orders", uuid.UUID(int=3))
    assert cluster.exists(paths.delete_topic("orders"))


@pytest.mark.parametrize("name", ["nothing", "", "a/b"])
async def test_a_topic_that_does_not_exist_cannot_be_deleted(cluster: Cluster, name: str) -> None:
    with pytest.raises(BrokerError) as caught:
        await topics.request_deletion(cluster.tool, name)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(BrokerError):
        await topics.read_topic(cluster.tool, "nothing")
    assert await topics.topic_configs(cluster.tool, "nothing") == {}


def test_topic_ids_never_begin_with_a_dash() -> None:
    rng = random.Random(5)
    drawn = {topics.random_topic_id(rng) for _ in range(500)}
    assert len(drawn) == 500
    assert not any(encode_uuid(topic_id).startswith("-") for topic_id in drawn)
