"""Tests of partition expansion: the placement of new partitions, and concurrent writes of the
topic's node."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from pybroker.coordinator.controller import topics
from pybroker.coordinator.controller.partition_expansion import expand_topic, plan_expansion
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import TopicAssignment
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import Broker
from unit_tests.coordinator.controller.cluster import Cluster, key
from unit_tests.replication.recreated_topic import NEXT_ID, RecreatedTopic

ID = uuid.UUID(int=7)
THREE = [Broker(1, ()), Broker(2, ()), Broker(4, ())]
RNG = random.Random(1)


def assignment(*replicas: tuple[int, ...], **fields: object) -> TopicAssignment:
    return TopicAssignment(dict(enumerate(replicas)), ID, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "count", "expected"),
    [
        (assignment((1, 2)), 4, {1: (2, 4), 2: (4, 1), 3: (1, 4)}),
        (assignment((2, 4)), 3, {1: (4, 2), 2: (1, 4)}),
        (assignment((3, 1)), 2, {1: (1, 2)}),
        (assignment((9,)), 3, {1: (2,), 2: (4,)}),
        (assignment((1,), (2,)), 5, {2: (4,), 3: (1,), 4: (2,)}),
    ],
)
def test_new_partitions_are_placed_from_the_first_broker_of_the_topic(
    topic: TopicAssignment, count: int, expected: dict[int, tuple[int, ...]]
) -> None:
    """Kafka's rule: the index of partition 0's first replica replaces both random numbers. If its
    broker is gone, the index of the next broker is used."""
    assert plan_expansion("t", topic, count, None, THREE, RNG) == expected


@pytest.mark.parametrize(
    ("topic", "count", "chosen", "code", "words"),
    [
        (
            assignment((1,), adding={0: (2,)}),
            2,
            None,
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            "A partition reassignment is in progress for the topic 't'.",
        ),
        (
            assignment((1, 2, 3, 4)),
            2,
            None,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor: 4 larger than available brokers: 3.",
        ),
        (
            TopicAssignment({1: (1,)}, ID),
            2,
            None,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "partition id 0 is missing",
        ),
        (
            assignment((1,)),
            3,
            [[1], [1, 2]],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partition 0 has 1 while partitions [2] have replication factors [2], respectively.",
        ),
        (
            assignment((1,)),
            2,
            [[7, 3]],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unknown broker(s) in replica assignment: 3, 7.",
        ),
    ],
)
def test_an_impossible_expansion_is_refused(
    topic: TopicAssignment,
    count: int,
    chosen: list[list[int]] | None,
    code: ErrorCode,
    words: str,
) -> None:
    with pytest.raises(BrokerError) as caught:
        plan_expansion("t", topic, count, chosen, THREE, RNG)
    assert caught.value.code is code
    assert words in caught.value.detail


async def grow(cluster: Cluster, count: int, *, validate_only: bool = False) -> None:
    await expand_topic(cluster.tool, "orders", count, None, THREE, RNG, validate_only=validate_only)


async def replicas(cluster: Cluster) -> dict[int, tuple[int, ...]]:
    return dict((await topics.read_topic(cluster.tool, "orders")).assignment)


async def test_an_expansion_keeps_unknown_keys_of_the_topic_node(cluster: Cluster) -> None:
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    path = paths.topic("orders")
    odd = TopicAssignment({0: (1,)}, ID, unknown={"later": 1})
    await cluster.tool.set(path, schemas.encode_topic(odd))
    await grow(cluster, 2)
    found = schemas.decode_topic(path, (await cluster.tool.get(path))[0])
    assert (found.topic_id, dict(found.unknown)) == (ID, {"later": 1})
    assert dict(found.replicas) == {0: (1,), 1: (2,)}


async def test_the_second_of_two_concurrent_expansions_starts_from_the_first(
    cluster: Cluster,
) -> None:
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    await asyncio.gather(grow(cluster, 2), grow(cluster, 4))
    assert sorted(await replicas(cluster)) == [0, 1, 2, 3]


@pytest.mark.parametrize("applied", [True, False])
async def test_an_expansion_with_a_lost_reply_is_stored_once(
    cluster: Cluster, applied: bool
) -> None:
    """The expansion reads two nodes before it writes."""
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    cluster.tool.countdown, cluster.tool.applied = 2, applied
    await grow(cluster, 3)
    assert cluster.tool.countdown < 0
    assert sorted(await replicas(cluster)) == [0, 1, 2]


async def test_partitions_for_a_deleted_topic_are_not_added_to_its_recreation(
    cluster: Cluster,
) -> None:
    """The recreated topic's node has the same version as the deleted topic's node."""
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    RecreatedTopic(cluster.tree, key("orders-0")).recreate_before_next_write_of(cluster.tool)
    with pytest.raises(BrokerError) as caught:
        await grow(cluster, 2)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = await topics.read_topic(cluster.tool, "orders")
    assert (found.topic_id, found.assignment) == (NEXT_ID, {0: (3, 1)})


async def test_validate_only_writes_nothing(cluster: Cluster) -> None:
    await topics.create_topic(cluster.tool, "orders", {0: (1,)}, {}, ID)
    await grow(cluster, 3, validate_only=True)
    assert sorted(await replicas(cluster)) == [0]
