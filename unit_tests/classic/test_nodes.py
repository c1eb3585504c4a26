"""Tests of the nodes of a member if other clients write the same nodes first."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pybroker.classic import nodes as nodes_module
from pybroker.classic.assignment import ThreadId
from pybroker.classic.commits import Offsets
from pybroker.classic.nodes import GroupNodes
from pybroker.classic.partition_owners import OwnedPartition
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import MalformedNode
from pybroker.model import TopicPartition
from pybroker.ports import DeleteOp
from unit_tests.classic.stage import GROUP, Stage, stage
from unit_tests.coordinator.memory_coord import MemoryCoord

T0 = TopicPartition("t", 0)
ME = ThreadId("g_me", 0)


@pytest.fixture
async def scene() -> AsyncIterator[Stage]:
    async with stage(t=4) as scene:
        yield scene


@pytest.fixture
async def coord(scene: Stage) -> MemoryCoord:
    return await scene.session()


@pytest.fixture
def nodes(coord: MemoryCoord) -> GroupNodes:
    return GroupNodes(coord, GROUP, exclude_internal=True)


@pytest.fixture
def offsets(coord: MemoryCoord) -> Offsets:
    return Offsets(coord, GROUP, sessions_ended=lambda: 0)


async def owned_by(scene: Stage, nodes: GroupNodes, *, sessions_ended: int = 0) -> OwnedPartition:
    """Return an owned partition with five consumed records."""
    assert await nodes.create_owners({T0: ME}) is None
    topic = scene.tree.node(paths.topic("t"))
    assert topic is not None
    return OwnedPartition(T0, ME, sessions_ended, topic[1].czxid, consumed=5)


async def test_an_owner_of_an_earlier_session_stores_no_offset(
    scene: Stage, nodes: GroupNodes, offsets: Offsets
) -> None:
    owned = await owned_by(scene, nodes, sessions_ended=-1)
    assert await offsets.write([owned]) == [owned]
    assert scene.offset("t", 0) is None


async def test_no_offset_is_stored_for_a_partition_being_released(
    scene: Stage, nodes: GroupNodes, offsets: Offsets
) -> None:
    """Another member may have created the owner node already."""
    owned = await owned_by(scene, nodes)
    owned.released = True
    assert await offsets.write([owned]) == [owned]
    assert scene.offset("t", 0) is None


@pytest.mark.parametrize("stored", [None, 3])
async def test_a_topic_that_is_being_deleted_gets_no_offset(
    scene: Stage, nodes: GroupNodes, offsets: Offsets, stored: int | None
) -> None:
    owned = await owned_by(scene, nodes)
    owned.stored = stored
    scene.make("/consumers/g/offsets/t")
    if stored is not None:
        scene.make("/consumers/g/offsets/t/0", b"3")
    scene.apply(DeleteOp(paths.topic("t")))
    assert await offsets.write([owned]) == [owned]
    assert scene.offset("t", 0) == stored


async def test_a_recreated_topic_gets_no_offset_of_the_deleted_topic(
    scene: Stage, nodes: GroupNodes, offsets: Offsets
) -> None:
    owned = await owned_by(scene, nodes)
    owned.stored = 3
    scene.delete_topic("t")
    scene.topic("t", 4)
    assert await offsets.write([owned]) == [owned]
    assert scene.offset("t", 0) is None


async def test_a_removed_offset_node_is_created_again(
    scene: Stage, nodes: GroupNodes, offsets: Offsets
) -> None:
    owned = await owned_by(scene, nodes)
    owned.stored = 3
    assert await offsets.write([owned]) == []
    assert scene.offset("t", 0) == owned.stored == 5


async def test_an_offset_node_of_another_client_is_overwritten(
    scene: Stage, nodes: GroupNodes, offsets: Offsets
) -> None:
    owned = await owned_by(scene, nodes)
    scene.make("/consumers/g/offsets/t/0", b"3")
    assert await offsets.write([owned]) == []
    assert scene.offset("t", 0) == 5


async def test_a_malformed_offset_is_an_error(scene: Stage, offsets: Offsets) -> None:
    scene.make("/consumers/g/offsets/t/0", b"five")
    with pytest.raises(MalformedNode, match="/consumers/g/offsets/t/0 is malformed"):
        await offsets.read([T0])
    scene.make("/consumers/g/offsets/t/1", b"-1")
    key = TopicPartition("t", 1)
    assert await offsets.read([key]) == {key: (None, None)}


async def test_only_own_nodes_are_released(scene: Stage, nodes: GroupNodes) -> None:
    scene.make("/consumers/g/owners/t/1", b"g_else-0")
    assert await nodes.create_owners({T0: ME}) is None
    await nodes.release([T0, TopicPartition("t", 1), TopicPartition("t", 2)])
    assert (scene.owner("t", 0), scene.owner("t", 1)) == (None, "g_else-0")


async def test_owner_nodes_are_created_all_or_none_in_any_number_of_requests(
    scene: Stage, nodes: GroupNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "CLAIMS_OF_A_MULTI_MAX", 2)
    wanted = dict.fromkeys((TopicPartition("t", number) for number in range(4)), ME)
    scene.make("/consumers/g/owners/t/3", b"g_else-0")
    assert await nodes.create_owners(wanted) == "/consumers/g/owners/t/3"
    assert [scene.owner("t", number) for number in range(4)] == [None, None, None, "g_else-0"]
    scene.apply(DeleteOp("/consumers/g/owners/t/3"))
    assert await nodes.create_owners(wanted) is None
    assert [scene.owner("t", number) for number in range(4)] == ["g_me-0"] * 4
