"""Finds new topics, new partitions and removed topics in the topic nodes, which brokers and Kafka's
tools write."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.deletion import Deletion
from pybroker.coordinator.controller.events import TopicChanged, TopicsChanged
from pybroker.coordinator.controller.initializer import ControllerInitializer, Watches
from pybroker.coordinator.controller.reading import read_topic_names, read_topics
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.model import TopicDescription, TopicPartition

log = logging.getLogger(__name__)


class TopicChanges:
    """Handles new, expanded, recreated and removed topics during one controller's term, and updates
    the topics in the `ClusterContext`."""

    def __init__(
        self, services: ControllerServices, loader: ControllerInitializer, watches: Watches
    ) -> None:
        self._services = services
        self._loader = loader
        self._watches = watches

    @property
    def _context(self) -> ClusterContext:
        return self._services.context

    async def look(self) -> set[str]:
        """Add new topics to the context and forget removed ones. Return the names of all topics."""
        names = await read_topic_names(self._services.coord, self._watches.topics)
        self._context.damaged.intersection_update(names)
        for name in sorted(self._context.topics.keys() - names):
            self._forget(name)
        fresh = names - self._context.topics.keys()
        left_out = await self._loader.add_topics(fresh)
        self._services.retries.repeat_if(left_out, TopicsChanged())
        await self._open(fresh & self._context.topics.keys())
        return names

    async def _open(self, names: Iterable[str]) -> None:
        """Elect leaders for the partitions of new topics."""
        keys = [
            partition.topic_partition
            for name in names
            for partition in self._context.partitions_of(name)
        ]
        for key in keys:
            self._services.notifier.changed_state(key)
        await self._services.repair(keys)

    async def look_at(self, name: str) -> None:
        """Update the context after the ZooKeeper node of one topic was changed or removed."""
        nodes, damaged = await read_topics(self._services.coord, [name], self._watches.topic)
        known = self._context.topics.get(name)
        node = nodes.get(name)
        if name in damaged:
            return
        if known is not None and node is None:
            self._forget(name)
        if known is None or node is None:
            await self.look()
            return
        if node.assignment.topic_id not in (None, known.topic_id):
            log.warning("topic recreated topic=%s: the node has another topic id", name)
            self._forget(name)
            await self.look()
            return
        identified = await self._loader.identify([node])
        self._services.retries.repeat_if({name} - identified.keys(), TopicChanged(name))
        if name in identified and name not in self._context.deletions:
            await self._grow(identified[name])

    async def _grow(self, found: TopicDescription) -> None:
        name, known = found.name, self._context.topics[found.name].assignment
        merged = {**found.assignment, **known}
        if any(found.assignment.get(key) != known[key] for key in known):
            log.warning("assignment change ignored topic=%s: existing replicas stay", name)
        added = [TopicPartition(name, key) for key in sorted(merged.keys() - known.keys())]
        if not added:
            return
        log.info("topic expanded topic=%s partitions=%d added=%d", name, len(merged), len(added))
        grown = TopicDescription(name, found.topic_id, merged)
        await self._loader.expand_topic(grown, added)
        self._services.notifier.describe(added)
        await self._services.repair(added)

    def _forget(self, name: str) -> None:
        """Remove a topic from the context. The topic was deleted or recreated, but not by this
        controller. Queue the requests that make all brokers forget the topic."""
        log.info("topic gone topic=%s", name)
        self._context.deletions[name] = Deletion(name)
        self._services.notifier.describe_now(self._context.partitions_of(name))
        self._context.drop_topic(name)
