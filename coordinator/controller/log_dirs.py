"""Failed log directories of live brokers (`/log_dir_event_notification`, KIP-112).

A notification names only the broker. So the controller sends LeaderAndIsr for all replicas on the
broker. The broker answers KAFKA_STORAGE_ERROR for each failed replica. A broker writes a
notification also in two other cases: it refuses to lead a partition, or it has left an ISR.
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

log = logging.getLogger(__name__)


class LogDirFailures:
    """Handles log directory notifications in one controller's term, and changes the context's
    failed directories and offline replicas."""

    def __init__(self, services: ControllerServices, watch: Watch) -> None:
        self._services = services
        self._context = services.context
        self._watch = watch

    async def take(self) -> None:
        """Handle the log directory notifications, and remove them. Raises CoordError,
        ControllerMoved."""
        try:
            names = await self._services.coord.children(paths.LOG_DIR_EVENTS, self._watch)
        except NoNode:
            return
        nodes = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        for broker_id, event in sorted({await self._read(node) for node in nodes}):
            if broker_id not in self._context.brokers:
                continue
            self._forget_refusals({broker_id})
            if event is LogDirEvent.DIRECTORY_FAILED:
                log.warning("log dir failed broker=%d", broker_id)
                self._context.failed_log_dirs.add(broker_id)
            else:
                log.warning("broker refuses to lead or left isr broker=%d", broker_id)
                await self._look_at(broker_id)
            self._services.notifier.queue_roles_again(broker_id)
        if nodes:
            await self._services.writer.write_all([Write((DeleteOp(node),)) for node in nodes])

    async def _look_at(self, broker_id: int) -> None:
        """Read the states of all partitions with a replica on the broker. Elect missing leaders. If
        the broker's replica is neither in the ISR nor an eligible leader replica, send the
        partition's state to its live replicas. The broker may have left the ISR by itself, and the
        leader may not know the new ISR."""
        services = self._services
        keys = [
            partition.topic_partition
            for partition in self._context.kept_partitions()
            if broker_id in partition.replicas
        ]
        await services.machine.refresh(keys)
        for key in keys:
            # The leader may not know this state even if the controller read it earlier: after an
            # ISR change notification the controller reads the state but sends no LeaderAndIsr.
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
        """Return (broker id, reason) of a notification; the id is -1 if the node is missing or
        malformed."""
        try:
            return schemas.decode_log_dir_event(node, (await self._services.coord.get(node))[0])
        except NoNode:
            return -1, LogDirEvent.DIRECTORY_FAILED
        except MalformedNode as error:
            log.error("log dir event ignored reason=%s", error)
            return -1, LogDirEvent.DIRECTORY_FAILED

    def answered(self, event: ReplicasRefused | ReplicasAccepted) -> list[TopicPartition]:
        """Apply a broker's answer to LeaderAndIsr. Return the partitions whose replica on the
        broker has become offline or has stopped being offline. A refused replica becomes offline
        only in two cases:

        - the broker has a failed log directory;
        - the broker leads the partition, and another replica can take over.
        """
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
            accepted = isinstance(event, ReplicasAccepted)
            name = "roles_accepted_after_refusal" if accepted else "roles_refused"
            log.warning("%s broker=%d partitions=%d", name, broker_id, len(changed))
        return sorted(changed)

    def _has_another(self, key: TopicPartition, leader: int) -> bool:
        """Return whether broker `leader` leads the partition and another replica can take over.
        Brokers that refused to lead are not counted. Otherwise these brokers could pass the
        leadership to each other forever."""
        partition = self._context.partitions[key]
        state = partition.state
        if state is None or state.leader != leader:
            return False
        others = {*self._context.hosts_of(partition)}.intersection(partition.replicas) - {leader}
        others -= self._context.yielding.get(key, set())
        if self._context.unclean_epochs.get(key) == state.leader_epoch:
            # An unclean election chose this leader, and it has not led yet: any other replica may
            # lead.
            return bool(others)
        return not others.isdisjoint((*state.isr, *state.eligible))

    def _leads_after_all(self, broker_id: int, keys: Collection[TopicPartition]) -> None:
        for key in keys:
            partition = self._context.partitions.get(key)
            state = None if partition is None else partition.state
            if state is not None and state.leader == broker_id:
                self._context.yielding.get(key, set()).discard(broker_id)

    def _forget_refusals(self, broker_ids: Collection[int]) -> None:
        for brokers in self._context.yielding.values():
            brokers.difference_update(broker_ids)

    def forget(self, broker_ids: Collection[int]) -> None:
        """Forget these brokers' failed log directories, offline replicas and refusals to lead. The
        brokers have ended or restarted."""
        self._forget_refusals(broker_ids)
        for broker_id in broker_ids:
            self._context.failed_log_dirs.discard(broker_id)
            self._context.offline.pop(broker_id, None)
