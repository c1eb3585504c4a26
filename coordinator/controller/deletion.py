"""Deleting a topic: which replicas still have to confirm, and which nodes are removed in which
order.

Brokers forget the topic (leader LEADER_DURING_DELETION), live replicas remove their data and
confirm, then the nodes go: first the tree below the topic, last, in one multi, the topic, its
configuration, its loss receipts and the request. So whatever happens in between, the request
survives as long as anything of the topic does, and a new controller starts over. A replica on a
dead broker does not hold up the deletion. That multi also removes the node of the topic's id:
nothing that was meant for the topic is stored for a recreated one (`zookeeper/topic_nodes.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.controller.replicas import ReplicaKey, ReplicaStatus, moved
from pybroker.coordinator.controller.writes import FencedWriter, Write
from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.errors import CoordError, NoNode
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.ports import Coord, DeleteOp

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion under way, and where its replicas are in it."""

    topic: str
    replicas: Mapping[ReplicaKey, ReplicaStatus] = field(default_factory=dict)

    @classmethod
    def begun(
        cls, topic: str, assignment: Mapping[int, Iterable[int]], live: Collection[int]
    ) -> Deletion:
        """Of a topic with these replicas, by partition; those on live brokers are to be stopped
        (`expecting`)."""
        found = {}
        for number, replicas in assignment.items():
            for broker_id in replicas:
                key = (broker_id, TopicPartition(topic, number))
                if broker_id in live:
                    found[key] = moved(key, ReplicaStatus.NON_EXISTENT, ReplicaStatus.ONLINE)
                else:
                    away = moved(key, ReplicaStatus.NON_EXISTENT, ReplicaStatus.OFFLINE)
                    found[key] = moved(key, away, ReplicaStatus.DELETION_INELIGIBLE)
        return cls(topic, found)

    @property
    def is_confirmed(self) -> bool:
        return ReplicaStatus.DELETION_STARTED not in self.replicas.values()

    def expecting(self, broker_id: int, topic_partitions: Iterable[TopicPartition]) -> Deletion:
        """That broker has been told to remove these replicas. Raises IllegalMove."""
        keys = [(broker_id, topic_partition) for topic_partition in topic_partitions]
        return self._moved(keys, ReplicaStatus.DELETION_STARTED)

    def confirmed(self, broker_id: int, topic_partitions: Iterable[TopicPartition]) -> Deletion:
        """That broker has removed these replicas; what it says of others, or says twice, does not
        count."""
        keys = [(broker_id, topic_partition) for topic_partition in topic_partitions]
        awaited = [key for key in keys if self._is_awaited(key)]
        return self._moved(awaited, ReplicaStatus.DELETION_SUCCESSFUL)

    def without_broker(self, broker_id: int) -> Deletion:
        """That broker is gone; nothing more is expected of it."""
        awaited = [key for key in self.replicas if key[0] == broker_id and self._is_awaited(key)]
        return self._moved(awaited, ReplicaStatus.DELETION_INELIGIBLE)

    def finished(self) -> Deletion:
        """Nothing is left of the topic's replicas. Raises IllegalMove while one is awaited."""
        return self._moved(self.replicas, ReplicaStatus.NON_EXISTENT)

    def _is_awaited(self, key: ReplicaKey) -> bool:
        return self.replicas.get(key) is ReplicaStatus.DELETION_STARTED

    def _moved(self, keys: Iterable[ReplicaKey], target: ReplicaStatus) -> Deletion:
        changed = {key: moved(key, self.replicas[key], target) for key in keys}
        return dataclasses.replace(self, replicas={**self.replicas, **changed})


async def remove_topic(coord: Coord, writer: FencedWriter, name: str, topic_id: uuid.UUID) -> bool:
    """Remove all nodes of the topic, its configuration and the request. Whether all are gone;
    if not, call again later.

    Raises ControllerMoved, or CoordError when the outcome is unknown.
    """
    roots = [paths.losses(name), paths.suspects(name)]
    last = [*roots, paths.delete_topic(name), paths.topic_id(topic_id)]
    await coord.sync(paths.topic(name))
    with suppress(NoNode):
        if await topic_nodes.stored_id(coord, name) not in (NO_TOPIC_ID, topic_id):
            return True  # of another one: ours went when a reply was lost
        roots.insert(0, paths.topic(name))
        last = [paths.topic(name), paths.topic_config(name), *last]
    below = [path for root in roots for path in await _nodes_below(coord, root)]
    outcomes = await writer.write_all([Write((DeleteOp(path),)) for path in reversed(below)])
    for outcome in outcomes:
        if isinstance(outcome, CoordError) and not isinstance(outcome, NoNode):
            log.warning("topic_removal_interrupted topic=%s reason=%r", name, outcome)
            return False
    existing = [path for path in last if await coord.exists(path) is not None]
    if not existing:
        return True
    (outcome,) = await writer.write_all([Write(tuple(map(DeleteOp, existing)))])
    if isinstance(outcome, CoordError):
        log.warning("topic_removal_interrupted topic=%s reason=%r", name, outcome)
        return False
    return True


async def _nodes_below(coord: Coord, root: str) -> list[str]:
    """All nodes below `root`, parents before their children."""

    async def children(path: str) -> list[str] | None:
        try:
            return [f"{path}/{name}" for name in await coord.children(path)]
        except NoNode:
            return None

    found: list[str] = []
    level = [root]
    while level:
        by_parent = await read_each(children, level)
        level = [path for paths_below in by_parent.values() for path in paths_below]
        found.extend(level)
    return found
