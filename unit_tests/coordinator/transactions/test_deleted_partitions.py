"""Tests of the search for deleted partitions in ZooKeeper's nodes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from pybroker.coordinator.transactions.deleted_partitions import deleted_partitions
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import create_parents
from pybroker.coordinator.zookeeper.schemas import TopicAssignment, encode_topic
from pybroker.errors import MalformedNode
from pybroker.model import TopicPartition
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord


@pytest.fixture
async def coord() -> AsyncIterator[MemoryCoord]:
    coord = MemoryCoord(MemoryTree())
    await coord.start()
    await create_parents(coord)
    topic = TopicAssignment(replicas={0: (1,), 1: (1,)}, topic_id=uuid.UUID(int=5))
    await coord.create(paths.topic("kept"), encode_topic(topic))
    await coord.create(paths.topic("going"), encode_topic(topic))
    await coord.create(f"{paths.DELETE_TOPICS}/going")
    yield coord
    await coord.close()


async def test_topics_without_a_node_or_being_deleted_are_deleted(coord: MemoryCoord) -> None:
    asked = [
        TopicPartition(topic, number) for topic in ("kept", "going", "gone") for number in (0, 1, 2)
    ]
    found = await deleted_partitions(coord, asked)
    assert set(asked) - set(found) == {TopicPartition("kept", 0), TopicPartition("kept", 1)}


async def test_malformed_node_raises(coord: MemoryCoord) -> None:
    await coord.create(paths.topic("broken"), b"{")
    with pytest.raises(MalformedNode):
        await deleted_partitions(coord, [TopicPartition("broken", 0)])
