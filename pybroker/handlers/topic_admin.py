"""Topics are made and deleted here on behalf of requests: defaults filled in, options checked,
replicas placed, and the wish written to ZooKeeper. The controller does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from pybroker.broker_config import BrokerConfig
from pybroker.coordinator.controller.topics import (
    check_assignment,
    check_new_topic,
    create_topic,
    plan_assignment,
    random_topic_id,
    request_deletion,
)
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ConfigError, ErrorCode
from pybroker.handlers.context import ConfigEntry, CreatedTopic
from pybroker.handlers.metadata_view import MetadataView
from pybroker.ports import Coord, Rng, WatchEvent
from pybroker.topic_config import TOPIC_OPTIONS, TopicConfig, effective_topic_config

_SOURCE_TOPIC: Final = 1
_SOURCE_STATIC_BROKER: Final = 4
_SOURCE_DEFAULT: Final = 5
"""Kafka's ConfigSource: DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG."""


class _Changed:
    """A one-shot watch that can be waited for."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def fire(self, _: WatchEvent) -> None:
        self.event.set()


class ZooKeeperTopicAdmin:
    """The `TopicAdmin` of a broker. Two creations of one name at a time share one write."""

    def __init__(
        self, *, coord: Coord, config: BrokerConfig, metadata: MetadataView, rng: Rng
    ) -> None:
        self._coord = coord
        self._config = config
        self._metadata = metadata
        self._rng = rng
        self._creating = asyncio.Lock()

    async def create(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        assignment: Mapping[int, Sequence[int]] | None,
        configs: Mapping[str, str],
        validate_only: bool,
    ) -> CreatedTopic:
        """Write a new topic. Raises BrokerError with what is wrong with it, CoordError if
        ZooKeeper does not answer."""
        try:
            effective = effective_topic_config(self._config, configs)
        except ConfigError as error:
            raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from error
        placed = self._place(partitions, replication_factor, assignment)
        topic_id = random_topic_id(self._rng)
        async with self._creating:
            if validate_only:
                await check_new_topic(self._coord, name)
            else:
                await create_topic(self._coord, name, placed, configs, topic_id)
        return CreatedTopic(
            topic_id=topic_id, assignment=placed, configs=self._entries(effective, configs)
        )

    async def delete(self, name: str) -> None:
        """Write a request for deletion. Raises BrokerError UNKNOWN_TOPIC_OR_PARTITION, CoordError
        if ZooKeeper does not answer."""
        await request_deletion(self._coord, name)

    async def wait_until_gone(self, name: str, timeout_s: float) -> bool:
        """Wait until the topic's node is removed, so that its name is free again; False if it was
        not within `timeout_s`. Raises CoordError if ZooKeeper does not answer."""
        path = paths.topic(name)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    changed = _Changed()
                    if await self._coord.exists(path, changed.fire) is None:
                        return True
                    await changed.event.wait()
        except TimeoutError:
            return False

    def _place(
        self,
        partitions: int,
        replication_factor: int,
        assignment: Mapping[int, Sequence[int]] | None,
    ) -> Mapping[int, Sequence[int]]:
        if assignment is not None:
            return check_assignment(assignment, self._metadata.brokers.keys())
        if partitions == -1:
            partitions = self._config.num_partitions
        if replication_factor == -1:
            replication_factor = self._config.default_replication_factor
        brokers = sorted(self._metadata.brokers.values(), key=lambda broker: broker.id)
        return plan_assignment(brokers, partitions, replication_factor, self._rng)

    def _entries(self, effective: TopicConfig, configs: Mapping[str, str]) -> list[ConfigEntry]:
        """Every option of the topic with the place that its value comes from."""
        entries = []
        for name, text in effective.texts.items():
            inherited = TOPIC_OPTIONS[name].inherits
            if name in configs:
                source = _SOURCE_TOPIC
            elif any(option in self._config.given for option in inherited):
                source = _SOURCE_STATIC_BROKER
            else:
                source = _SOURCE_DEFAULT
            entries.append(ConfigEntry(name=name, value=text, source=source))
        return entries
