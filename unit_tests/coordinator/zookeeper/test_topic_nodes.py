"""Tests that writes to a topic's nodes are refused after the topic is deleted."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.registry import create_parents
from pybroker.coordinator.zookeeper.schemas import TopicAssignment, encode_topic
from pybroker.errors import BadVersion, MultiFailed, NodeExists, NoNode
from pybroker.model import NO_TOPIC_ID
from pybroker.ports import CheckOp, CoordOp, CreateOp, SetOp
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord

ORDERS = ("orders", uuid.UUID(int=7))
PAYMENTS = ("payments", uuid.UUID(int=8))


@pytest.fixture
async def coord() -> AsyncIterator[MemoryCoord]:
    coord = MemoryCoord(MemoryTree(ManualClock()))
    await coord.start()
    await create_parents(coord)
    for name, topic_id in (ORDERS, PAYMENTS):
        topic = encode_topic(TopicAssignment({0: (1,)}, topic_id))
        await coord.create(paths.topic(name), topic)
        await coord.create(paths.topic_id(topic_id))
    yield coord
    await coord.close()


async def test_operations_are_applied_and_answered_in_order(coord: MemoryCoord) -> None:
    ops: list[CoordOp] = [CreateOp("/a"), CheckOp("/a", 0), CreateOp("/b")]
    results = await topic_nodes.multi(coord, ORDERS, ops)
    assert results == ["/a", None, "/b"]
    with pytest.raises(MultiFailed) as refused:
        await topic_nodes.multi(coord, ORDERS, [CreateOp("/c"), CreateOp("/a")])
    assert (refused.value.index, type(refused.value.cause)) == (1, NodeExists)
    with pytest.raises(BadVersion):
        await topic_nodes.apply(coord, ORDERS, CheckOp("/a", 5))
    assert await coord.exists("/c") is None


@pytest.mark.parametrize("recreated", [True, False])
async def test_no_operation_is_applied_for_a_deleted_topic(
    coord: MemoryCoord, recreated: bool
) -> None:
    await coord.delete(paths.topic_id(PAYMENTS[1]))
    if recreated:
        topic = encode_topic(TopicAssignment({0: (1,)}, uuid.UUID(int=9)))
        await coord.set(paths.topic("payments"), topic)
    else:
        await coord.delete(paths.topic("payments"))
    with pytest.raises(MultiFailed) as refused:
        await topic_nodes.multi(coord, PAYMENTS, [CreateOp("/a")])
    assert refused.value.index < 0
    with pytest.raises(NoNode):
        await topic_nodes.apply(coord, PAYMENTS, CreateOp("/a"))
    assert await coord.exists("/a") is None


async def test_writes_apply_to_a_topic_without_a_topic_id_node(coord: MemoryCoord) -> None:
    await coord.delete(paths.topic_id(ORDERS[1]))
    assert await topic_nodes.apply(coord, ORDERS, CreateOp("/a")) == ["/a"]
    for content in (b"damaged", encode_topic(TopicAssignment({0: (1,)}))):
        await coord.set(paths.topic("orders"), content)
        nameless = ("orders", await topic_nodes.stored_id(coord, "orders"))
        assert nameless[1] == NO_TOPIC_ID
        await topic_nodes.apply(coord, nameless, SetOp("/a", content))
    with pytest.raises(NoNode):
        await topic_nodes.apply(coord, ORDERS, CreateOp("/b"))


async def test_without_a_topic_nothing_is_checked(coord: MemoryCoord) -> None:
    assert await topic_nodes.multi(coord, None, [CreateOp("/a")]) == ["/a"]
