"""A new controller's first step: read the whole cluster from ZooKeeper, and set watches for later
changes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pybroker.coordinator.controller import partitions
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.partitions import StateNode
from pybroker.coordinator.controller.reading import (
    TopicNode,
    read_brokers,
    read_deletion_requests,
    read_states,
    read_topic_names,
    read_topics,
)
from pybroker.coordinator.controller.topics import random_topic_id
from pybroker.coordinator.controller.writes import FencedWriter, Write
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import CoordError
from pybroker.model import TopicDescription, TopicPartition, encode_uuid
from pybroker.ports import Coord, CoordOp, CreateOp, Rng, SetOp, Watch
from pybroker.yield_every import yield_every

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watches:
    """The callbacks for changes of the ZooKeeper nodes that a controller reads."""

    brokers: Watch
    topics: Watch
    topic: Watch
    deletions: Watch


class ControllerInitializer:
    """Reads brokers, topics and partition states into one context."""

    def __init__(
        self,
        coord: Coord,
        writer: FencedWriter,
        context: ClusterContext,
        watches: Watches,
        rng: Rng,
    ) -> None:
        self._coord = coord
        self._writer = writer
        self._context = context
        self._watches = watches
        self._rng = rng

    async def load(self) -> tuple[set[str], set[str]]:
        """Read the whole cluster. Return (topics whose deletion is requested, topics to read again
        because their topic id could not be stored)."""
        await self._coord.sync()
        self._context.brokers = await read_brokers(self._coord, self._watches.brokers)
        names = await read_topic_names(self._coord, self._watches.topics)
        deletions = await read_deletion_requests(self._coord, self._watches.deletions)
        left_out = await self.add_topics(names)
        log.info(
            "cluster loaded brokers=%d topics=%d partitions=%d deletions=%d",
            len(self._context.brokers),
            len(self._context.topics),
            len(self._context.partitions),
            len(deletions),
        )
        return deletions, left_out

    async def add_topics(self, names: Iterable[str]) -> set[str]:
        """Read topics that are new to the context. Return the topics to read again, because their
        topic id could not be stored."""
        nodes, damaged = await read_topics(self._coord, names, self._watches.topic)
        identified = await self.identify(nodes.values())
        left_out = nodes.keys() - identified.keys()
        self._context.damaged.difference_update(identified)
        self._context.damaged.update(damaged, left_out)
        keys = [
            TopicPartition(name, partition)
            for name, topic in identified.items()
            for partition in topic.assignment
        ]
        states, unreadable = await read_states(self._coord, keys)
        for topic in identified.values():
            self._context.put_topic(topic)
        await self._put_partitions(keys, states, unreadable)
        return left_out

    async def expand_topic(self, topic: TopicDescription, added: Iterable[TopicPartition]) -> None:
        """Read the states of new partitions (`added`) of a topic that is already in the context,
        and add the partitions to the context."""
        keys = list(added)
        states, unreadable = await read_states(self._coord, keys)
        self._context.put_topic(topic)
        await self._put_partitions(keys, states, unreadable)

    async def identify(self, nodes: Iterable[TopicNode]) -> dict[str, TopicDescription]:
        """Return name -> topic. Older tools of Kafka write topic nodes without a topic id: the call
        stores an id in these nodes. A topic is left out if its id could not be stored."""
        identified: dict[str, TopicDescription] = {}
        writes: dict[str, Write] = {}
        stored = {*await self._coord.children(paths.TOPIC_IDS)}
        for node in nodes:
            name, topic_id = node.name, node.assignment.topic_id
            ops: list[CoordOp] = []
            if topic_id is None:
                known = self._context.topics.get(name)
                topic_id = random_topic_id(self._rng) if known is None else known.topic_id
                content = schemas.encode_topic(replace(node.assignment, topic_id=topic_id))
                ops.append(SetOp(paths.topic(name), content, node.version))
            if encode_uuid(topic_id) not in stored:
                ops.append(CreateOp(paths.topic_id(topic_id)))
            identified[name] = TopicDescription(name, topic_id, dict(node.assignment.replicas))
            if ops:
                writes[name] = Write(tuple(ops))
        outcomes = await self._writer.write_all(list(writes.values()))
        for name, outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, CoordError):
                log.warning("topic id not stored topic=%s reason=%r", name, outcome)
                del identified[name]
        return identified

    async def _put_partitions(
        self,
        keys: Iterable[TopicPartition],
        states: Mapping[TopicPartition, StateNode],
        unreadable: Collection[TopicPartition],
    ) -> None:
        self._context.damaged.update(key.topic for key in unreadable)
        brokers = self._context.brokers
        async for key in yield_every(keys):
            if key in unreadable:
                continue
            replicas = self._context.topics[key.topic].assignment[key.partition]
            node = states.get(key)
            self._context.put_partition(partitions.found(key, replicas, node, brokers))
            stale = frozenset() if node is None else partitions.registered_since(node, brokers)
            if stale:
                self._context.stale[key] = stale
