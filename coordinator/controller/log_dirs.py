"""Log directories that failed while their broker lives on: what was notified, and which replicas
cannot be used for it (`/log_dir_event_notification`, KIP-112).

A notification names the broker only. Which replicas it has lost comes out when they are told their
roles once more: those in the failed directory answer KAFKA_STORAGE_ERROR. The same way a broker
says that a replica would rather not lead, or has stepped aside, though no directory failed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from pybroker.coordinator.controller.events import ReplicasAccepted, ReplicasRefused
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.controller.writes import Write
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import LogDirEvent
from pybroker.errors import MalformedNode, NoNode
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.ports import DeleteOp, Watch

logger = logging.getLogger(__name__)


class LogDirFailures:
    """Of one term; changes the context's failed directories and offline replicas."""

    def __init__(self, services: ControllerServices, watch: Watch) -> None:
        self._services = services
        self._context = services.context
        self._watch = watch

    async def take(self) -> None:
        """Read and remove the notifications. Raises CoordError, ControllerMoved."""
        try:
            names = await self._services.coord.children(paths.LOG_DIR_EVENTS, self._watch)
        except NoNode:
            return
        nodes = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        for broker_id, event in sorted({await self._read(node) for node in nodes}):
            if broker_id not in self._context.brokers:
                continue
            self._forget_reluctance({broker_id})
            if event is LogDirEvent.DIRECTORY_FAILED:
                logger.warning("log_dir_failed broker=%d", broker_id)
                self._context.failed_log_dirs.add(broker_id)
            else:
                logger.warning("replicas_changed broker=%d", broker_id)
                await self._look_at(broker_id)
            self._services.notifier.tell_roles_again(broker_id)
        if nodes:
            await self._services.writer.write_all([Write((DeleteOp(node),)) for node in nodes])

    async def _look_at(self, broker_id: int) -> None:
        """Take what that broker has stored of its replicas, and tell the leaders which do not know
        that it left their ISR; a partition that it does not lead any more gets another leader."""
        services = self._services
        keys = [
            partition.topic_partition
            for partition in self._context.kept_partitions()
            if broker_id in partition.replicas
        ]
        await services.machine.refresh(keys)
        for key in keys:
            # Also where it was read before: after another notice leaders are told nothing.
            if not self._counts_on(key, broker_id):
                services.notifier.changed_state(key)
        await services.repair(key for key in keys if not self._is_led(key))

    def _counts_on(self, key: TopicPartition, broker_id: int) -> bool:
        state = self._context.partitions[key].state
        return state is None or broker_id in (*state.isr, *state.eligible)

    def _is_led(self, key: TopicPartition) -> bool:
        state = self._context.partitions[key].state
        return state is None or state.leader != NO_LEADER

    async def _read(self, node: str) -> tuple[int, LogDirEvent]:
        """The broker, -1 if the node is gone or says nothing, and its reason."""
        try:
            return schemas.decode_log_dir_event(node, (await self._services.coord.get(node))[0])
        except NoNode:
            return -1, LogDirEvent.DIRECTORY_FAILED
        except MalformedNode as error:
            logger.error("log_dir_event_ignored reason=%s", error)
            return -1, LogDirEvent.DIRECTORY_FAILED

    def answered(self, event: ReplicasRefused | ReplicasAccepted) -> list[TopicPartition]:
        """What a broker could not open, or could after all: the replicas for which that is new.
        Where no directory failed a refusal counts only if somebody else can lead instead: a replica
        that has to be copied first, has a hole, or no room on its disk. Else it is tried again
        where it is."""
        context, broker_id = self._context, event.broker_id
        broker = context.brokers.get(broker_id)
        if broker is None or broker.epoch != event.broker_epoch:
            return []
        offline = context.offline.setdefault(broker_id, set())
        if isinstance(event, ReplicasAccepted):
            changed = offline.intersection(event.topic_partitions)
            offline.difference_update(changed)
            self._leads_after_all(broker_id, event.topic_partitions)
        else:
            changed = set(event.topic_partitions & context.partitions.keys()) - offline
            if broker_id not in context.failed_log_dirs:
                changed = {key for key in changed if self._has_another(key, broker_id)}
                for key in changed:
                    context.yielding.setdefault(key, set()).add(broker_id)
            offline.update(changed)
        if changed:
            name = type(event).__name__
            logger.warning("%s broker=%d partitions=%d", name, broker_id, len(changed))
        return sorted(changed)

    def _has_another(self, key: TopicPartition, leader: int) -> bool:
        """Whether that broker is to lead, and another one could that has not refused itself, or the
        partition would never come to rest."""
        partition = self._context.partitions[key]
        state = partition.state
        if state is None or state.leader != leader:
            return False
        others = {*self._context.hosts_of(partition)}.intersection(partition.replicas) - {leader}
        others -= self._context.yielding.get(key, set())
        if self._context.unclean_epochs.get(key) == state.leader_epoch:
            # It was chosen although it may lack records, and has not led yet: so may any other.
            return bool(others)
        return not others.isdisjoint((*state.isr, *state.eligible))

    def _leads_after_all(self, broker_id: int, keys: Collection[TopicPartition]) -> None:
        for key in keys:
            partition = self._context.partitions.get(key)
            state = None if partition is None else partition.state
            if state is not None and state.leader == broker_id:
                self._context.yielding.get(key, set()).discard(broker_id)

    def _forget_reluctance(self, broker_ids: Collection[int]) -> None:
        for brokers in self._context.yielding.values():
            brokers.difference_update(broker_ids)

    def forget(self, broker_ids: Collection[int]) -> None:
        """These brokers have ended or started anew."""
        self._forget_reluctance(broker_ids)
        for broker_id in broker_ids:
            self._context.failed_log_dirs.discard(broker_id)
            self._context.offline.pop(broker_id, None)
