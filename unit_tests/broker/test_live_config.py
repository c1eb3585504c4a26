"""Tests that a change of the broker's options reaches every log and listener, also after a
failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import cast

import pytest

from pybroker.broker.live_config import LiveConfig
from pybroker.clock import ManualClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import create_parents
from pybroker.errors import ConnectionLoss
from pybroker.replication.manager import ReplicaManager
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord


class Logs:
    """A stand-in for the replicas that records each reconfiguration."""

    def __init__(self) -> None:
        self.changes: list[Collection[str] | None] = []
        self.fail_next = 0

    async def reconfigure(self, topics: Collection[str] | None) -> None:
        self.changes.append(topics)
        if self.fail_next:
            self.fail_next -= 1
            raise ConnectionLoss("the connection to ZooKeeper was lost")


class Broker:
    """A LiveConfig that follows changes, with its listeners."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.coord = MemoryCoord(MemoryTree(clock))
        self.logs = Logs()
        self.topics_changed: list[Collection[str] | None] = []
        self.live = LiveConfig(
            static=BrokerConfig.parse({}),
            broker_id=1,
            coord=self.coord,
            clock=clock,
            replicas=cast(ReplicaManager, self.logs),
            on_change=lambda before, now: None,
            on_topics=self.topics_changed.append,
        )

    async def change(self, text: str) -> None:
        await self.live.change_broker(None, lambda _: {"message.max.bytes": text}, replaces=True)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = Broker()
    await made.coord.start()
    await create_parents(made.coord)
    await made.live.start()
    made.logs.changes.clear()
    made.topics_changed.clear()
    yield made
    await made.live.stop()
    await made.coord.close()


async def test_all_logs_receive_a_change_of_the_brokers_options(broker: Broker) -> None:
    await broker.change("1000")
    assert broker.live.current.message_max_bytes == 1000
    assert broker.logs.changes == [None]


async def test_logs_that_missed_a_change_get_it_with_the_next_one(broker: Broker) -> None:
    broker.logs.fail_next = 1
    await broker.change("1000")
    await broker.change("1000")
    assert broker.logs.changes == [None, None]
    await broker.change("1000")
    assert broker.logs.changes == [None, None]


async def test_the_listener_receives_the_topics_whose_options_changed(broker: Broker) -> None:
    await broker.coord.create(paths.topic("orders"))
    await broker.live.change_topic("orders", lambda _: {"retention.ms": "5"}, replaces=True)
    assert broker.topics_changed == [{"orders"}]
    await broker.change("1000")
    assert broker.topics_changed == [{"orders"}, None]
