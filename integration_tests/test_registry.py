"""Tests of a broker's registration with a real ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from integration_tests.zookeeper_service import RealService
from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper import paths, registry
from pybroker.errors import StartupError
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from pybroker.model import Broker, Endpoint
from pybroker.ports import Coord

pytestmark = pytest.mark.asyncio(loop_scope="module")
_BROKER = Broker(1, (Endpoint("PLAINTEXT", "localhost", 9092),), rack="r1")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedZooKeeper]:
    zookeeper = EmbeddedZooKeeper(str(tmp_path_factory.mktemp("zookeeper")))
    await zookeeper.start()
    yield zookeeper
    await zookeeper.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def service(server: EmbeddedZooKeeper) -> AsyncIterator[RealService]:
    real = RealService(server)
    yield real
    await real.close()


async def registered(
    coord: Coord, *, wait_ms: int = 10_000, earlier: frozenset[int] = frozenset()
) -> Broker:
    return await registry.register_broker(
        coord,
        _BROKER,
        clock=SystemClock(),
        session_timeout_ms=wait_ms,
        earlier_session_ids=earlier,
    )


async def test_epoch_and_incarnation_are_zxids_of_the_registration(service: RealService) -> None:
    coord = await service.client()
    await registry.create_parents(coord)
    broker = await registered(coord)
    stat = await coord.exists(paths.broker(1))
    incarnation = await coord.exists(paths.incarnation(1))
    assert stat is not None
    assert incarnation is not None
    assert (broker.epoch, stat.ephemeral_owner) == (stat.czxid, coord.session_id)
    assert broker.incarnation == incarnation.version == 1


async def test_next_registration_has_larger_epoch_and_incarnation(service: RealService) -> None:
    coord = await service.client()
    await registry.create_parents(coord)
    first = await registered(coord)
    await registry.unregister_broker(coord, first)
    assert await coord.exists(paths.broker(1)) is None
    second = await registered(coord)
    assert second.epoch > first.epoch
    assert second.incarnation == first.incarnation + 1


async def test_another_broker_with_the_same_id_is_named(service: RealService) -> None:
    first, second = await service.client(), await service.client()
    await registry.create_parents(first)
    await registered(first)
    with pytest.raises(StartupError, match=r"^broker id 1 is registered already by localhost:9092"):
        await registered(second, wait_ms=200)


async def test_registration_waits_for_the_end_of_another_brokers_session(
    service: RealService,
) -> None:
    first, second = await service.client(), await service.client()
    await registry.create_parents(first)
    await registered(first)
    waiting = asyncio.create_task(registered(second))
    await second.sync()
    await service.expire(first)
    assert (await waiting).incarnation == 2


async def test_registration_of_the_brokers_earlier_session_is_replaced(
    service: RealService,
) -> None:
    earlier, coord = await service.client(), await service.client()
    await registry.create_parents(coord)
    before = await registered(earlier)
    after = await registered(coord, wait_ms=0, earlier=frozenset({earlier.session_id}))
    assert after.epoch > before.epoch
    stat = await coord.exists(paths.broker(1))
    assert stat is not None
    assert stat.ephemeral_owner == coord.session_id


async def test_all_callers_get_the_same_cluster_id(service: RealService) -> None:
    coords = [await service.client() for _ in range(3)]
    found = await asyncio.gather(
        *(registry.cluster_id(coord, random.Random(seed)) for seed, coord in enumerate(coords))
    )
    assert len(set(found)) == 1
    assert len(found[0]) == 22


async def test_generated_ids_begin_at_1001_and_differ(service: RealService) -> None:
    coord = await service.client()
    await registry.create_parents(coord)
    ids = await asyncio.gather(*(registry.generate_broker_id(coord) for _ in range(3)))
    assert sorted(ids) == [1001, 1002, 1003]
