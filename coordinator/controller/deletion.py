"""The deletion of a topic, in these steps:

- UpdateMetadata with leader LEADER_DURING_DELETION makes all brokers forget the topic.
- Live brokers delete their replicas and confirm.
- The controller removes the children of the topic's nodes.
- One multi removes the topic's nodes, the deletion request and /pybroker/topic_ids/<id>.

Every write to the topic's nodes checks /pybroker/topic_ids/<id>. So a late write fails, even if the
topic was created again (`zookeeper/topic_nodes.py`).
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
    """A topic deletion under way, and the status of each replica of the topic."""

    topic: str
    replicas: Mapping[ReplicaKey, ReplicaStatus] = field(default_factory=dict)

    @classmethod
    def begun(
        cls, topic: str, assignment: Mapping[int, Iterable[int]], live: Collection[int]
    ) -> Deletion:
        """Return the new deletion of a topic. `assignment`: partition -> broker ids. Replicas on
        `live` brokers are ONLINE, all others DELETION_INELIGIBLE."""
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
        """Return the deletion with these replicas as DELETION_STARTED, because the broker was asked
        to delete them. Raises IllegalMove."""
        keys = [(broker_id, topic_partition) for topic_partition in topic_partitions]
        return self._moved(keys, ReplicaStatus.DELETION_STARTED)

    def confirmed(self, broker_id: int, topic_partitions: Iterable[TopicPartition]) -> Deletion:
        """Return the deletion with the status DELETION_SUCCESSFUL for these replicas, because the
        broker has confirmed that it deleted them. A replica whose confirmation is not awaited keeps
        its status."""
        keys = [(broker_id, topic_partition) for topic_partition in topic_partitions]
        awaited = [key for key in keys if self._is_awaited(key)]
        return self._moved(awaited, ReplicaStatus.DELETION_SUCCESSFUL)

    def without_broker(self, broker_id: int) -> Deletion:
        """Return a copy of this deletion that does not wait for confirmations of the broker,
        because the broker has ended."""
        awaited = [key for key in self.replicas if key[0] == broker_id and self._is_awaited(key)]
        return self._moved(awaited, ReplicaStatus.DELETION_INELIGIBLE)

    def finished(self) -> Deletion:
        """Return the deletion with every replica NON_EXISTENT. Raises IllegalMove while a
        confirmation is awaited."""
        return self._moved(self.replicas, ReplicaStatus.NON_EXISTENT)

    def _is_awaited(self, key: ReplicaKey) -> bool:
        return self.replicas.get(key) is ReplicaStatus.DELETION_STARTED

    def _moved(self, keys: Iterable[ReplicaKey], target: ReplicaStatus) -> Deletion:
        changed = {key: moved(key, self.replicas[key], target) for key in keys}
        return dataclasses.replace(self, replicas={**self.replicas, **changed})


async def remove_topic(coord: Coord, writer: FencedWriter, name: str, topic_id: uuid.UUID) -> bool:
    """Remove from ZooKeeper the nodes of the topic, its configuration and its deletion request.
    Return False if some of these nodes remain: the caller must call again. Raises ControllerMoved.
    Raises CoordError if the outcome is unknown."""
    roots = [paths.losses(name), paths.suspects(name)]
    last = [*roots, paths.delete_topic(name), paths.topic_id(topic_id)]
    await coord.sync(paths.topic(name))
    with suppress(NoNode):
        if await topic_nodes.stored_id(coord, name) not in (NO_TOPIC_ID, topic_id):
            return True  # a recreated topic: the removal was applied and its reply lost
        roots.insert(0, paths.topic(name))
        last = [paths.topic(name), paths.topic_config(name), *last]
    below = [path for root in roots for path in await _nodes_below(coord, root)]
    outcomes = await writer.write_all([Write((DeleteOp(path),)) for path in reversed(below)])
    for outcome in outcomes:
        if isinstance(outcome, CoordError) and not isinstance(outcome, NoNode):
            log.warning(
                "topic removal interrupted topic=%s reason=%r: the controller tries again",
                name,
                outcome,
            )
            return False
    existing = [path for path in last if await coord.exists(path) is not None]
    if not existing:
        return True
    (outcome,) = await writer.write_all([Write(tuple(map(DeleteOp, existing)))])
    if isinstance(outcome, CoordError):
        log.warning(
            "topic removal interrupted topic=%s reason=%r: the controller tries again",
            name,
            outcome,
        )
        return False
    return True


async def _nodes_below(coord: Coord, root: str) -> list[str]:
    """Return the paths of all nodes below `root`, parents first."""

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
