"""Tests of registrations: lost replies, and registrations of earlier and of other sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths, registry, schemas
from pybroker.errors import StartupError
from pybroker.model import Broker, Endpoint
from pybroker.ports import CoordOp, OpResult
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord

BROKER = Broker(1, (Endpoint("PLAINTEXT", "localhost", 9092),))


class Cluster:
    """A ZooKeeper in memory that has the parent nodes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tree = MemoryTree(self.clock)

    async def client(self) -> MemoryCoord:
        coord = MemoryCoord(self.tree)
        await coord.start()
        return coord

    async def register(self, coord: MemoryCoord, wait_ms: int = 0) -> Broker:
        return await registry.register_broker(
            coord,
            BROKER,
            clock=self.clock,
            session_timeout_ms=wait_ms,
            earlier_session_ids=coord.earlier_session_ids,
        )

    def agrees(self, broker: Broker, coord: MemoryCoord) -> bool:
        """Whether the tree has this registration, by this client."""
        node = self.tree.node(paths.broker(broker.id))
        incarnation = self.tree.node(paths.incarnation(broker.id))
        assert node is not None
        assert incarnation is not None
        data, stat = node
        return (
            schemas.decode_broker("", data) == (broker.endpoints, broker.rack)
            and stat.ephemeral_owner == coord.session_id
            and (stat.czxid, incarnation[1].version) == (broker.epoch, broker.incarnation)
        )


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await registry.create_parents(await made.client())
    yield made


async def test_all_parents_that_tools_require_are_created(cluster: Cluster) -> None:
    assert set(paths.PERSISTENT_PARENTS) <= set(cluster.tree.paths())
    await registry.create_parents(await cluster.client())


async def test_registration_gives_epoch_and_incarnation(cluster: Cluster) -> None:
    coord = await cluster.client()
    broker = await cluster.register(coord)
    assert cluster.agrees(broker, coord)


class LosesOneReply(MemoryCoord):
    """A client that loses the reply of the first multi, which is applied or not."""

    applied: bool | None = None

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        applied, self.applied = self.applied, None
        if applied is not None:
            self.lose_reply(applied=applied)
        return await super().multi(ops)


@pytest.mark.parametrize("applied", [True, False])
async def test_lost_reply_never_registers_twice(cluster: Cluster, applied: bool) -> None:
    coord = LosesOneReply(cluster.tree)
    coord.applied = applied
    await coord.start()
    broker = await cluster.register(coord)
    assert cluster.agrees(broker, coord)
    assert broker.incarnation == 1


async def test_new_session_registers_with_a_new_incarnation(cluster: Cluster) -> None:
    coord = await cluster.client()
    first = await cluster.register(coord)
    coord.expire()
    await coord_has_a_session(coord)
    second = await cluster.register(coord)
    assert cluster.agrees(second, coord)
    assert (second.incarnation, second.epoch > first.epoch) == (first.incarnation + 1, True)


async def coord_has_a_session(coord: MemoryCoord) -> None:
    connected = asyncio.Event()
    coord.add_listener(lambda _: connected.set() if coord.session_id else None)
    await connected.wait()


async def test_own_registration_of_this_session_is_renewed(cluster: Cluster) -> None:
    coord = await cluster.client()
    first = await cluster.register(coord)
    cluster.clock.advance(1)  # another timestamp, so other data
    second = await cluster.register(coord)
    assert cluster.agrees(second, coord)
    assert second.incarnation == first.incarnation + 1


async def test_the_endpoint_of_another_registered_broker_is_named(cluster: Cluster) -> None:
    await cluster.register(await cluster.client())
    with pytest.raises(StartupError, match=r"^broker id 1 is registered already by localhost:9092"):
        await cluster.register(await cluster.client())


async def test_a_broker_without_data_waits_until_its_id_is_free(cluster: Cluster) -> None:
    owner, other = await cluster.client(), await cluster.client()
    await registry.wait_until_free(other, 1, 0)
    broker = await cluster.register(owner)
    await registry.wait_until_free(owner, 1, 0)
    with pytest.raises(StartupError, match=r"^broker id 1 is registered already by localhost:9092"):
        await registry.wait_until_free(other, 1, 0)
    await registry.unregister_broker(owner, broker)
    await registry.wait_until_free(other, 1, 0)


async def test_other_endpoints_are_written_under_the_same_registration(cluster: Cluster) -> None:
    coord = await cluster.client()
    broker = await cluster.register(coord)
    moved = replace(broker, endpoints=(Endpoint("PLAINTEXT", "elsewhere", 9093),))
    await registry.update_registration(coord, moved, clock=cluster.clock)
    assert cluster.agrees(moved, coord)
    written = cluster.tree.node(paths.broker(broker.id))
    await registry.update_registration(coord, moved, clock=cluster.clock)
    assert cluster.tree.node(paths.broker(broker.id)) == written, "nothing had changed"


async def test_the_registration_of_another_session_is_not_updated(cluster: Cluster) -> None:
    broker = await cluster.register(await cluster.client())
    before = cluster.tree.node(paths.broker(broker.id))
    moved = replace(broker, endpoints=(Endpoint("PLAINTEXT", "elsewhere", 9093),))
    await registry.update_registration(await cluster.client(), moved, clock=cluster.clock)
    assert cluster.tree.node(paths.broker(broker.id)) == before


async def test_unregister_keeps_the_node_of_another_session(cluster: Cluster) -> None:
    owner, other = await cluster.client(), await cluster.client()
    broker = await cluster.register(owner)
    await registry.unregister_broker(other, broker)
    assert cluster.agrees(broker, owner)
    await registry.unregister_broker(owner, broker)
    await registry.unregister_broker(owner, broker)
    assert paths.broker(1) not in cluster.tree.paths()


async def test_cluster_id_is_made_once(cluster: Cluster) -> None:
    first = await registry.cluster_id(await cluster.client(), random.Random(1))
    second = await registry.cluster_id(await cluster.client(), random.Random(2))
    assert first == second
    assert len(first) == 22


async def test_broker_ids_are_generated_above_the_reserved(cluster: Cluster) -> None:
    coord = await cluster.client()
    assert await registry.generate_broker_id(coord) == 1001
    assert await registry.generate_broker_id(coord, reserved_max=5) == 7
