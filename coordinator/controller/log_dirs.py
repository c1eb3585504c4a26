"""Log directories that failed while their broker lives on: what was notified, and which replicas
cannot be used for it (`/log_dir_event_notification`, KIP-112).

A notification names the broker only. Which replicas it has lost comes out when they are told their
roles once more: those in the failed directory answer KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.events import ReplicasAccepted, ReplicasRefused
from pybroker.coordinator.controller.writes import FencedWriter, Write
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import MalformedNode, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord, DeleteOp, Watch

logger = logging.getLogger(__name__)

TellAgain = Callable[[int], None]
"""Tells a broker once more which replicas it leads and follows."""


class LogDirFailures:
    """Of one reign; changes the context's failed directories and offline replicas."""

    def __init__(
        self,
        coord: Coord,
        writer: FencedWriter,
        context: ClusterContext,
        watch: Watch,
        tell_again: TellAgain,
    ) -> None:
        self._coord = coord
        self._writer = writer
        self._context = context
        self._watch = watch
        self._tell_again = tell_again

    async def take(self) -> None:
        """Read and remove the notifications. Raises CoordError, ControllerMoved."""
        try:
            names = await self._coord.children(paths.LOG_DIR_EVENTS, self._watch)
        except NoNode:
            return
        nodes = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        for node in nodes:
            broker_id = await self._read(node)
            if broker_id in self._context.brokers:
                logger.warning("log_dir_failed broker=%d", broker_id)
                self._context.failed_log_dirs.add(broker_id)
                self._tell_again(broker_id)
        if nodes:
            await self._writer.write_all([Write((DeleteOp(node),)) for node in nodes])

    async def _read(self, node: str) -> int:
        """The broker; -1 if the node is gone or says nothing."""
        try:
            return schemas.decode_log_dir_failure(node, (await self._coord.get(node))[0])
        except NoNode:
            return -1
        except MalformedNode as error:
            logger.error("log_dir_event_ignored reason=%s", error)
            return -1

    def answered(self, event: ReplicasRefused | ReplicasAccepted) -> list[TopicPartition]:
        """What a broker could not open, or could after all: the replicas for which that is new.
        Without a notification a refusal counts only where somebody else can lead instead: a replica
        that has to be copied first, or has a hole. Else it is tried again where it is, as after a
        full disk."""
        context, broker_id = self._context, event.broker_id
        broker = context.brokers.get(broker_id)
        if broker is None or broker.epoch != event.broker_epoch:
            return []
        offline = context.offline.setdefault(broker_id, set())
        if isinstance(event, ReplicasAccepted):
            changed = offline.intersection(event.topic_partitions)
            offline.difference_update(changed)
        else:
            changed = set(event.topic_partitions & context.partitions.keys()) - offline
            if broker_id not in context.failed_log_dirs:
                changed = {key for key in changed if self._has_another(key, broker_id)}
            offline.update(changed)
        if changed:
            name = type(event).__name__
            logger.warning("%s broker=%d partitions=%d", name, broker_id, len(changed))
        return sorted(changed)

    def _has_another(self, key: TopicPartition, leader: int) -> bool:
        """Whether that broker is to lead, and another one could."""
        partition = self._context.partitions[key]
        state = partition.state
        if state is None or state.leader != leader:
            return False
        hosts = self._context.hosts_of(partition)
        return any(
            replica != leader and replica in hosts for replica in (*state.isr, *state.eligible)
        )

    def forget(self, broker_ids: Collection[int]) -> None:
        """These brokers have ended or started anew."""
        for broker_id in broker_ids:
            self._context.failed_log_dirs.discard(broker_id)
            self._context.offline.pop(broker_id, None)
