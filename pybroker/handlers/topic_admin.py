"""Creates, expands and deletes topics: checks the request, chooses the replicas, and writes the
change to ZooKeeper, where the controller reads it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence

from pybroker.config.layered_config import LayeredConfig
from pybroker.config.topic_config import TopicConfig
from pybroker.coordinator.controller.partition_expansion import expand_topic
from pybroker.coordinator.controller.topics import (
    check_assignment,
    check_new_topic,
    create_topic,
    plan_assignment,
    random_topic_id,
    request_deletion,
    request_deletion_of,
)
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import decode_topic
from pybroker.errors import BrokerError, ConfigError, ErrorCode, NoNode
from pybroker.handlers.config_entries import topic_entries
from pybroker.handlers.context import CreatedTopic
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import Broker
from pybroker.ports import Coord, Rng, WatchEvent


class _Changed:
    """The callback of a one-shot watch in ZooKeeper: sets an event when the node changes."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def fire(self, _: WatchEvent) -> None:
        self.event.set()


class ZooKeeperTopicAdmin:
    """Creates, expands and deletes topics by writing to ZooKeeper. Concurrent calls of `create`
    write to ZooKeeper one after another."""

    def __init__(
        self,
        *,
        coord: Coord,
        layers: Callable[[], LayeredConfig],
        metadata: MetadataView,
        rng: Rng,
    ) -> None:
        """`layers` returns the broker's options in force, from which a topic inherits."""
        self._coord = coord
        self._layers = layers
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
        """Write a new topic to ZooKeeper. Raise BrokerError if the topic is invalid, CoordError if
        ZooKeeper does not answer."""
        layers = self._layers()
        try:
            TopicConfig.parse(layers.current, configs)
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
            topic_id=topic_id, assignment=placed, configs=topic_entries(layers, configs)
        )

    async def delete(self, name: str, topic_id: uuid.UUID | None = None) -> None:
        """Write to ZooKeeper that the topic is to be deleted. If the topic is missing, raise
        BrokerError UNKNOWN_TOPIC_ID, or UNKNOWN_TOPIC_OR_PARTITION if `topic_id` is None. Raise
        CoordError if ZooKeeper fails."""
        if topic_id is None:
            await request_deletion(self._coord, name)
        else:
            await request_deletion_of(self._coord, name, topic_id)

    async def expand(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Increase the topic's number of partitions in ZooKeeper to `count`. `assignments` are the
        replicas of the new partitions (None: chosen here). With `validate_only`, write nothing.
        Raises BrokerError if the request is invalid. Raises CoordError if an access to ZooKeeper
        fails."""
        await expand_topic(
            self._coord,
            name,
            count,
            assignments,
            self._live_brokers(),
            self._rng,
            validate_only=validate_only,
        )

    async def wait_until_gone(self, name: str, timeout_s: float) -> bool:
        """Wait until the topic's node is removed from ZooKeeper. Return False if it still exists
        after `timeout_s`. Raise CoordError if ZooKeeper does not answer."""
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

    async def stored_count(self, name: str) -> tuple[uuid.UUID | None, int] | None:
        """Return (topic id or None, number of partitions) from ZooKeeper, or None if there is no
        topic. Raises CoordError, MalformedNode."""
        path = paths.topic(name)
        try:
            data, _ = await self._coord.get(path)
        except NoNode:
            return None
        topic = decode_topic(path, data)
        return topic.topic_id, len(topic.replicas)

    def _place(
        self,
        partitions: int,
        replication_factor: int,
        assignment: Mapping[int, Sequence[int]] | None,
    ) -> Mapping[int, Sequence[int]]:
        if assignment is not None:
            return check_assignment(assignment, self._metadata.brokers.keys())
        if partitions == -1:
            partitions = self._layers().current.num_partitions
        if replication_factor == -1:
            replication_factor = self._layers().current.default_replication_factor
        return plan_assignment(self._live_brokers(), partitions, replication_factor, self._rng)

    def _live_brokers(self) -> list[Broker]:
        return sorted(self._metadata.brokers.values(), key=lambda broker: broker.id)
