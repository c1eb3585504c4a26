"""Tests of configurations in ZooKeeper: writes with their notification, and the application of
changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.config_changes import NOTIFICATION_LIFE_MS, ConfigChanges
from pybroker.coordinator.zookeeper.config_store import change_config, read_config
from pybroker.coordinator.zookeeper.paths import ConfigEntity, broker_entity, topic_entity
from pybroker.coordinator.zookeeper.registry import create_parents
from pybroker.coordinator.zookeeper.schemas import TopicAssignment, encode_config, encode_topic
from pybroker.errors import ConnectionLoss, CoordError, MalformedNode
from pybroker.model import TopicPartition
from pybroker.ports import SetOp
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S
from unit_tests.replication.recreated_topic import RecreatedTopic
from unit_tests.replication.vocabulary import TOPIC_ID

TOPIC = topic_entity("t")


class Service:
    """A ZooKeeper in memory, the client of this broker, and the client of another broker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tree = MemoryTree(self.clock)
        self.coord = MemoryCoord(self.tree, name="ours")
        self.other = MemoryCoord(self.tree, name="other")

    def content(self, path: str) -> object:
        found = self.tree.node(path)
        return None if found is None else json.loads(found[0])

    def notes(self) -> list[object]:
        return [
            self.content(path)
            for path in sorted(self.tree.paths())
            if path.startswith(paths.CONFIG_CHANGE_PREFIX)
        ]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    await made.coord.start()
    await made.other.start()
    await create_parents(made.coord)
    await made.coord.create(paths.topic("t"), b"{}")
    yield made
    await made.other.close()
    await made.coord.close()


def setting(**values: str) -> Mapping[str, str]:
    return {name.replace("_", "."): text for name, text in values.items()}


async def put(coord: MemoryCoord, entity: ConfigEntity, **values: str) -> bool:
    return await change_config(coord, entity, lambda current: {**current, **setting(**values)})


# writing


async def test_a_change_is_written_with_its_notification(service: Service) -> None:
    await put(service.coord, TOPIC, retention_ms="1")
    await put(service.coord, broker_entity(None), message_max_bytes="2")
    await put(service.coord, broker_entity(7), message_max_bytes="3")
    assert service.content("/config/topics/t") == {"version": 1, "config": {"retention.ms": "1"}}
    assert service.content("/config/brokers/<default>") == {
        "version": 1,
        "config": {"message.max.bytes": "2"},
    }
    assert service.notes() == [
        {"version": 2, "entity_path": "topics/t"},
        {"version": 2, "entity_path": "brokers/<default>"},
        {"version": 2, "entity_path": "brokers/7"},
    ]
    assert await read_config(service.coord, TOPIC) == {"retention.ms": "1"}


async def test_values_of_a_topic_that_does_not_exist_are_not_written(service: Service) -> None:
    for name, exists in (("t", True), ("gone", False)):
        entity = topic_entity(name)
        written = await change_config(service.coord, entity, lambda current: {}, owner=name)
        assert written is exists
    assert service.content("/config/topics/gone") is None
    assert len(service.notes()) == 1


async def test_values_of_a_deleted_topic_are_not_stored_for_its_recreation(
    service: Service,
) -> None:
    await service.coord.set(paths.topic("t"), encode_topic(TopicAssignment({0: (1,)}, TOPIC_ID)))
    await service.coord.create(paths.topic_id(TOPIC_ID))
    await service.coord.create(paths.topic_config("t"), encode_config({"a": "1"}))
    recreated_topic = RecreatedTopic(service.tree, TopicPartition("t", 0))
    recreated_topic.recreate_before_next_write_of(service.coord)
    assert not await change_config(service.coord, TOPIC, lambda was: {**was, "b": "2"}, owner="t")
    assert await read_config(service.coord, TOPIC) == {}


async def test_a_change_in_between_is_not_overwritten(service: Service) -> None:
    await put(service.coord, TOPIC, a="1")
    calls = 0

    def change(current: dict[str, str]) -> dict[str, str]:
        nonlocal calls
        calls += 1
        if calls == 1:
            data = json.dumps({"version": 1, "config": {**current, "b": "2"}}).encode()
            service.tree.apply([SetOp(paths.topic_config("t"), data)], service.other.session_id)
        return {**current, "c": "3"}

    assert await change_config(service.coord, TOPIC, change)
    assert await read_config(service.coord, TOPIC) == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_neither_loses_nor_doubles_the_change(
    service: Service, applied: bool
) -> None:
    await put(service.coord, TOPIC, a="1")

    calls = 0

    def change(current: dict[str, str]) -> dict[str, str]:
        nonlocal calls
        calls += 1
        if calls == 1:
            service.coord.lose_reply(applied=applied)
        return {**current, "b": "2"}

    assert await change_config(service.coord, TOPIC, change)
    assert await read_config(service.coord, TOPIC) == {"a": "1", "b": "2"}
    assert len(service.notes()) == 2


async def test_a_damaged_node_can_be_replaced_but_not_changed(service: Service) -> None:
    await service.coord.create("/config/topics/t", b"nonsense")
    with pytest.raises(MalformedNode):
        await put(service.coord, TOPIC, a="1")
    assert await change_config(service.coord, TOPIC, lambda _: {"b": "2"}, replaces=True)
    assert await read_config(service.coord, TOPIC) == {"b": "2"}


# applying changes


class Applied:
    """An `Apply` that records the changed entities."""

    def __init__(self, service: Service) -> None:
        self.applied: list[list[str] | None] = []
        self.fail_next = 0
        self.changes = ConfigChanges(coord=service.coord, clock=service.clock, apply=self._apply)
        self._news = asyncio.Event()

    async def _apply(self, entities: Collection[ConfigEntity] | None) -> None:
        if self.fail_next:
            self.fail_next -= 1
            raise ConnectionLoss("while applying")
        self.applied.append(
            None if entities is None else [paths.config_entity_path(e) for e in entities]
        )
        self._news.set()

    async def until(self, expected: list[list[str] | None]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.applied != expected:
                self._news.clear()
                await self._news.wait()


@pytest.fixture
async def applied(service: Service) -> AsyncIterator[Applied]:
    made = Applied(service)
    await made.changes.start()
    yield made
    await made.changes.stop()


async def test_all_configurations_are_applied_at_the_start_and_then_changes(
    service: Service, applied: Applied
) -> None:
    assert applied.applied == [None]
    await put(service.other, TOPIC, a="1")
    await applied.until([None, ["topics/t"]])
    await put(service.other, broker_entity(None), a="1")
    await applied.until([None, ["topics/t"], ["brokers/<default>"]])


@pytest.mark.parametrize(
    "note",
    [
        b'{"version":1,"entity_type":"topics","entity_name":"t"}',
        b'{"version":2,"entity_path":"topics/t"}',
        b'"t"',
    ],
)
async def test_notifications_of_every_version_are_understood(
    service: Service, applied: Applied, note: bytes
) -> None:
    await service.other.create(paths.CONFIG_CHANGE_PREFIX, note, sequence=True)
    await applied.until([None, ["topics/t"]])


@pytest.mark.parametrize(
    "note", [b"", b"nonsense", b"[]", b'{"version":2}', b'{"version":2,"entity_path":"nobody/x"}']
)
async def test_a_malformed_notification_is_ignored(
    service: Service, applied: Applied, note: bytes
) -> None:
    await service.other.create(paths.CONFIG_CHANGE_PREFIX, note, sequence=True)
    await put(service.other, TOPIC, a="1")
    await applied.until([None, ["topics/t"]])


async def test_a_change_that_could_not_be_applied_is_applied_later(
    service: Service, applied: Applied
) -> None:
    applied.fail_next = 1
    await put(service.other, TOPIC, a="1")
    await applied.until([None, ["topics/t"]])


async def test_a_new_session_reads_everything_and_listens_again(
    service: Service, applied: Applied
) -> None:
    service.coord.expire()
    await applied.until([None, None])
    await put(service.other, TOPIC, a="1")
    await applied.until([None, None, ["topics/t"]])


async def test_notifications_are_purged_when_they_are_old(
    service: Service, applied: Applied
) -> None:
    await put(service.other, TOPIC, a="1")
    await applied.until([None, ["topics/t"]])
    service.clock.advance(NOTIFICATION_LIFE_MS / 1000 + 1)
    await put(service.other, TOPIC, a="2")
    await applied.until([None, ["topics/t"], ["topics/t"]])
    await idle()  # the purge follows
    assert len(service.notes()) == 1


async def test_a_start_without_zookeeper_fails(service: Service) -> None:
    service.coord.suspend()
    with pytest.raises(CoordError):
        await Applied(service).changes.start()
