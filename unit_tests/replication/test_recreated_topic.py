"""Tests that a broker's write about a replica of a deleted topic is not stored for the recreated
topic, whose nodes have the same versions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.coordinator.zookeeper.schemas import TopicAssignment, encode_topic
from pybroker.errors import ConnectionLoss
from pybroker.ports import CreateOp
from pybroker.replication.health.power_loss import Left, PowerLoss
from pybroker.replication.health.step_aside import without
from pybroker.storage.log_parts import Damage
from pybroker.storage.replica_health import Event
from unit_tests.patience import until
from unit_tests.replication.health.test_damaged_replicas import Broker, state
from unit_tests.replication.recreated_topic import NEXT, RecreatedTopic
from unit_tests.replication.vocabulary import ME, T0, TOPIC_ID


async def at_the_start(broker: Broker, recreated_topic: RecreatedTopic) -> None:
    broker.killed()
    broker.flip()
    broker.killed()
    await broker.damaged.settle()


async def in_office(broker: Broker, recreated_topic: RecreatedTopic) -> None:
    broker.damaged.loop.start()
    broker.damaged.found(T0, Damage(0, str(broker.path), 0, "the checksum is wrong"))
    await until(lambda: broker.told or recreated_topic.kept)


async def not_complete(broker: Broker, recreated_topic: RecreatedTopic) -> None:
    broker.replicas.logs.health.move(T0, Event.COPY_BEGUN)
    broker.replicas.manager.on_refusal(T0)
    await broker.looks()


async def after_a_power_loss(broker: Broker, recreated_topic: RecreatedTopic) -> None:
    await PowerLoss(broker.coord, ME, ManualClock()).step_aside({T0: Left(1, 3)})


WRITERS = pytest.mark.parametrize(
    "write", [at_the_start, in_office, not_complete, after_a_power_loss]
)
Writer = Callable[[Broker, RecreatedTopic], Awaitable[None]]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a damaged replica that is still in the ISR."""
    made = Broker(tmp_path)
    await made.begin(state(ME, (ME, 2)))
    topic = encode_topic(TopicAssignment({0: (ME, 2)}, TOPIC_ID))
    await made.coord.set(paths.topic("t"), topic)
    await made.coord.create(paths.topic_id(TOPIC_ID))
    yield made
    await made.damaged.loop.stop()
    made.replicas.logs.unlock()
    await made.coord.close()


@pytest.fixture
def recreated_topic(broker: Broker) -> RecreatedTopic:
    return RecreatedTopic(broker.tree, T0)


@WRITERS
async def test_a_write_in_flight_when_the_topic_is_recreated_is_not_stored(
    broker: Broker, recreated_topic: RecreatedTopic, write: Writer
) -> None:
    recreated_topic.recreate_before_next_write_of(broker.coord)
    await write(broker, recreated_topic)
    stored, _ = await broker.stored()
    assert stored in (NEXT, without(NEXT, ME))


async def test_a_loss_of_the_only_replica_is_not_written_for_the_recreated_topic(
    broker: Broker,
) -> None:
    alone = encode_topic(TopicAssignment({0: (ME,)}, TOPIC_ID))
    await broker.coord.set(paths.topic("t"), alone)
    await ensure(broker.coord, paths.losses("t"))
    recreated_topic = RecreatedTopic(broker.tree, T0, CreateOp(paths.losses("t")))
    recreated_topic.recreate_before_next_write_of(broker.coord)
    await after_a_power_loss(broker, recreated_topic)
    assert broker.tree.node(paths.loss(T0)) is None


@WRITERS
async def test_a_write_sent_before_a_connection_loss_is_not_stored_for_the_recreated_topic(
    broker: Broker, recreated_topic: RecreatedTopic, write: Writer
) -> None:
    """The writer may have tried again meanwhile."""
    recreated_topic.hold_next_write_of(broker.coord)
    with suppress(ConnectionLoss):
        await write(broker, recreated_topic)
    await recreated_topic.recreate()
    recreated_topic.deliver_held_write()
    assert await broker.stored() == (NEXT, 0)
