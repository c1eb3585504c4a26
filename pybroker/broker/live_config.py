"""The broker's configuration in force: the configuration file, overridden by the dynamic values in
ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.declaration import first_faults
from pybroker.config.layered_config import LayeredConfig, option_of, usable_values
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.config_changes import ConfigChanges
from pybroker.coordinator.zookeeper.config_store import Change, change_config, read_config
from pybroker.coordinator.zookeeper.paths import (
    ConfigEntity,
    broker_entity,
    topic_entity,
)
from pybroker.errors import ConfigError, CoordError, MalformedNode
from pybroker.ports import Clock, Coord
from pybroker.replication.manager import ReplicaManager

log = logging.getLogger(__name__)

_REFRESH_WAIT_S: Final = 5.0
"""A request that changes options is answered when the change is in force on this broker, or this
time (s) after the change was written to ZooKeeper."""

OnChange = Callable[[BrokerConfig, BrokerConfig], None]
"""Receives the broker's configuration before and after a change."""
OnTopics = Callable[[Collection[str] | None], None]
"""Receives the names of the topics whose own options changed. None means that options of the broker
changed; any topic may inherit these."""


class LiveConfig:
    """Follows configuration changes in ZooKeeper between `start` and `stop`, and passes them to the
    broker's components. Before `start`, only the configuration file is in force."""

    def __init__(
        self,
        *,
        static: BrokerConfig,
        broker_id: int,
        coord: Coord,
        clock: Clock,
        replicas: ReplicaManager,
        on_change: OnChange,
        on_topics: OnTopics = lambda topics: None,
    ) -> None:
        self._layers = LayeredConfig(static)
        self._for_all = broker_entity(None)
        self._for_this = broker_entity(broker_id)
        self._coord = coord
        self._replicas = replicas
        self._on_change = on_change
        self._on_topics = on_topics
        self._changes = ConfigChanges(coord=coord, clock=clock, apply=self._apply)
        self._applying = asyncio.Lock()
        self._logs_are_behind = False
        """Whether the logs still have to receive a change of the broker's options."""

    @property
    def layers(self) -> LayeredConfig:
        return self._layers

    @property
    def current(self) -> BrokerConfig:
        """The broker's options with the values now in force."""
        return self._layers.current

    async def start(self) -> None:
        """Read all dynamic options from ZooKeeper, apply them, and follow their changes from then
        on. Raise CoordError."""
        await self._changes.start()

    async def stop(self) -> None:
        """Stop following changes of the configuration. Idempotent."""
        await self._changes.stop()

    # reads and changes of requests

    async def read(self, entity: ConfigEntity) -> dict[str, str]:
        """Return the values (option -> text) that ZooKeeper has for a topic, one broker, or all
        brokers. Raise MalformedNode or CoordError."""
        return await read_config(self._coord, entity)

    async def change_topic(self, name: str, change: Change, *, replaces: bool) -> bool:
        """Replace the topic's values in ZooKeeper by the result of `change`, and apply them on this
        broker. Return False if the topic does not exist.

        `change` receives the stored values, or an empty dict if `replaces`. Raises CoordError, the
        errors of `change` and, unless `replaces`, MalformedNode.
        """
        entity = topic_entity(name)
        written = await change_config(self._coord, entity, change, owner=name, replaces=replaces)
        if written:
            await self._refresh(entity)
        return written

    async def change_broker(self, broker_id: int | None, change: Change, *, replaces: bool) -> None:
        """Change the dynamic values of broker `broker_id` (None: the cluster-wide default values).
        `change` and `replaces` have the same meaning as in `change_topic`."""
        entity = broker_entity(broker_id)
        await change_config(self._coord, entity, change, replaces=replaces)
        await self._refresh(entity)

    async def _refresh(self, entity: ConfigEntity) -> None:
        """Apply a change that this broker has just written to ZooKeeper. A failure is only logged,
        because the broker applies the change later."""
        try:
            async with asyncio.timeout(_REFRESH_WAIT_S):
                await self._apply([entity])
        except (CoordError, TimeoutError) as error:
            log.info(
                "changed configuration not in force yet, the broker applies it later error=%r",
                error,
            )

    # application of changes

    async def _apply(self, entities: Collection[ConfigEntity] | None) -> None:
        """Read the values of these topics or brokers (None: all) in ZooKeeper, and apply them."""
        async with self._applying:
            everything = entities is None
            names = {entity.parts[0] for entity in entities or ()}
            if everything or names & {*self._for_all.parts, *self._for_this.parts}:
                await self._reload()
            if everything or self._logs_are_behind:
                self._on_topics(None)
                await self._replicas.reconfigure(None)
                self._logs_are_behind = False
                return
            topics = {name for entity_type, name in names if entity_type == "topics"}
            if topics:
                self._on_topics(topics)
                await self._replicas.reconfigure(topics)

    async def _reload(self) -> None:
        """Read the broker's dynamic options from ZooKeeper and apply them. Invalid values and
        malformed nodes are logged and ignored."""
        before = self._layers
        for entity, per_broker in ((self._for_all, False), (self._for_this, True)):
            where = paths.config(entity)
            try:
                values = await self.read(entity)
            except MalformedNode as error:
                log.error("configuration ignored path=%s error=%s", where, error)
                continue
            usable, faults = usable_values(values, per_broker=per_broker)
            for fault in first_faults(faults):
                log.error("broker option ignored path=%s fault=%s", where, fault)
            try:
                self._layers = self._layers.with_values(usable, per_broker=per_broker)
            except ConfigError as error:
                log.error("configuration ignored path=%s error=%s", where, error)
        idle = sorted(
            set(_options_without_effect(self._layers)) - set(_options_without_effect(before))
        )
        if idle:
            log.warning("options without effect in this broker: %s", ", ".join(idle))
        if self._layers.current != before.current:
            changed = _differences(before.current, self._layers.current)
            log.info("configuration changed options=%s", ",".join(changed))
            self._logs_are_behind = True
            self._on_change(before.current, self._layers.current)


def _options_without_effect(layers: LayeredConfig) -> Iterator[str]:
    """Yield the names of the dynamic options that have no effect in this broker."""
    for name, text in [*layers.for_all.items(), *layers.for_this.items()]:
        row = option_of(name)
        if row is not None and row.is_without_effect(text):
            yield name


def _differences(before: BrokerConfig, after: BrokerConfig) -> list[str]:
    old, new = before.values, after.values
    return [name for name in new if old[name] != new[name]]
