"""Tests of the controller election: a broker wins only if its own session owns /controller."""

from __future__ import annotations

import pytest

from pybroker.coordinator.controller.election import Lost, Won, elect, resign
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.ports import WatchEvent, WatchKind
from unit_tests.coordinator.controller.cluster import Cluster
from unit_tests.coordinator.memory_coord import MemoryCoord


async def client(cluster: Cluster) -> MemoryCoord:
    coord = MemoryCoord(cluster.tree)
    await coord.start()
    return coord


async def stand(
    cluster: Cluster, coord: MemoryCoord, broker_id: int, seen: list[WatchEvent] | None = None
) -> Won | Lost:
    events = [] if seen is None else seen
    return await elect(coord, broker_id, cluster.clock, events.append)


async def test_the_first_epoch_is_one_and_both_nodes_change_at_once(cluster: Cluster) -> None:
    coord = await client(cluster)
    assert await stand(cluster, coord, 1) == Won(1, epoch=1, epoch_version=1)
    office, epoch = cluster.tree.node(paths.CONTROLLER), cluster.tree.node(paths.CONTROLLER_EPOCH)
    assert office is not None
    assert epoch is not None
    assert office[1].ephemeral_owner == coord.session_id
    assert office[1].czxid == epoch[1].mzxid
    assert cluster.json(paths.CONTROLLER) == {
        "version": 1,
        "brokerid": 1,
        "timestamp": str(cluster.clock.wall_ms()),
    }


async def test_the_controller_that_stands_again_changes_nothing(cluster: Cluster) -> None:
    coord = await client(cluster)
    first = await stand(cluster, coord, 1)
    assert await stand(cluster, coord, 1) == first


async def test_another_broker_gets_the_controller_id_and_a_watch_of_its_end(
    cluster: Cluster,
) -> None:
    one, other = await client(cluster), await client(cluster)
    won = await stand(cluster, one, 1)
    assert isinstance(won, Won)
    seen: list[WatchEvent] = []
    assert await stand(cluster, other, 2, seen) == Lost(1)
    await resign(one, won)
    assert seen == [WatchEvent(WatchKind.DELETED, paths.CONTROLLER)]
    assert await stand(cluster, other, 2) == Won(2, epoch=2, epoch_version=2)


async def test_a_controller_node_of_our_earlier_session_does_not_win(cluster: Cluster) -> None:
    earlier, later = await client(cluster), await client(cluster)
    assert isinstance(await stand(cluster, earlier, 1), Won)
    assert await stand(cluster, later, 1) == Lost(1)


async def test_a_late_resignation_keeps_the_next_controllers_node(cluster: Cluster) -> None:
    one, other = await client(cluster), await client(cluster)
    won = await stand(cluster, one, 1)
    assert isinstance(won, Won)
    await cluster.tool.delete(paths.CONTROLLER)
    assert isinstance(await stand(cluster, other, 2), Won)
    await resign(one, won)
    assert cluster.json(paths.CONTROLLER)["brokerid"] == 2


@pytest.mark.parametrize(
    "text", [b'{"version":2,"brokerid":9,"timestamp":"1","kraftControllerEpoch":-1}', b"9"]
)
async def test_every_form_of_the_node_is_read(cluster: Cluster, text: bytes) -> None:
    await cluster.tool.create(paths.CONTROLLER, text)
    assert await stand(cluster, await client(cluster), 1) == Lost(9)


async def test_an_existing_controller_epoch_is_raised_by_one(cluster: Cluster) -> None:
    await cluster.tool.create(paths.CONTROLLER_EPOCH, schemas.encode_number(41))
    assert await stand(cluster, await client(cluster), 1) == Won(1, epoch=42, epoch_version=1)
