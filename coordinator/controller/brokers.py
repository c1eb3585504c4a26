"""Brokers that start, end, restart or change their endpoints: the controller elects leaders for the
affected partitions and notifies the brokers."""

from __future__ import annotations

import logging

from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.deletions import Deletions
from pybroker.coordinator.controller.log_dirs import LogDirFailures
from pybroker.coordinator.controller.partitions import PartitionStatus
from pybroker.coordinator.controller.reading import read_brokers
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.model import TopicPartition
from pybroker.ports import Watch

log = logging.getLogger(__name__)


class BrokerChanges:
    """Handles broker changes during one controller epoch, and keeps the brokers in the
    `ClusterContext` up to date."""

    def __init__(
        self,
        services: ControllerServices,
        watch: Watch,
        log_dirs: LogDirFailures,
        deletions: Deletions,
    ) -> None:
        self._services = services
        self._watch = watch
        self._log_dirs = log_dirs
        self._deletions = deletions

    @property
    def _context(self) -> ClusterContext:
        return self._services.context

    async def look(self) -> None:
        """Read the registered brokers, and handle each change since the last read. A broker with a
        new epoch has restarted (KIP-380). Raises ControllerMoved, CoordError."""
        services, notifier = self._services, self._services.notifier
        current = await read_brokers(services.coord, self._watch)
        before = self._context.brokers
        lost = {
            broker_id
            for broker_id, broker in before.items()
            if broker_id not in current or current[broker_id].epoch != broker.epoch
        }
        started = {
            broker_id for broker_id in current if broker_id not in before or broker_id in lost
        }
        moved = {
            broker_id
            for broker_id in before.keys() - lost
            if current[broker_id].endpoints != before[broker_id].endpoints
        }
        if moved:
            log.info("broker endpoints changed brokers=%s", sorted(moved))
        if lost:
            log.info("brokers lost brokers=%s", sorted(lost))
        services.journal.brokers_changed(lost, started)
        came_back = lost & current.keys()
        # A leader may have added one of the lost brokers to the ISR since the state was last read.
        # If the broker stayed in the ISR, the leader would wait for its fetches.
        left_out = self._outside_isr(lost)
        await services.machine.refresh(left_out)
        disturbed = self._lose(lost)
        if started:
            log.info("brokers started brokers=%s", sorted(started))
            disturbed.update(
                partition.topic_partition
                for partition in self._context.kept_partitions()
                if partition.status is not PartitionStatus.ONLINE
            )
        self._context.brokers = current
        await notifier.close(lost)
        await notifier.move(moved)
        notifier.open(started)
        for key, version in left_out.items():
            partition = self._context.partitions[key]
            # A restarted broker may have removed itself from the ISR, because a power loss cut its
            # log short. A leader that does not know this still counts the broker as in sync, and
            # would never add it to the ISR again.
            if partition.version > version or not came_back.isdisjoint(partition.replicas):
                notifier.changed_state(key)
        notifier.describe_replicas_of(lost | started)
        await notifier.queue_current_state(started)
        await services.repair(disturbed)
        self._deletions.stop_replicas_of(started)
        await self._deletions.finish()

    def _outside_isr(self, lost: set[int]) -> dict[TopicPartition, int]:
        """Find the partitions with a replica that is on one of these brokers but not in the ISR.
        Return partition -> version of its state node."""
        return {
            partition.topic_partition: partition.version
            for partition in self._context.kept_partitions()
            if partition.state is not None
            and not lost.intersection(partition.replicas) <= set(partition.state.isr)
        }

    def _lose(self, lost: set[int]) -> set[TopicPartition]:
        """Record that these brokers have ended or restarted. Return the partitions whose ISR
        contains one of these brokers."""
        context = self._context
        context.leaving -= lost
        self._log_dirs.forget(lost)
        self._deletions.forget_brokers(lost)
        affected = set()
        for partition in list(context.kept_partitions()):
            if partition.state is None or lost.isdisjoint(partition.state.isr):
                continue
            key = partition.topic_partition
            affected.add(key)
            known = context.stale.get(key, frozenset())
            context.stale[key] = known | lost.intersection(partition.state.isr)
            if partition.state.leader in lost:
                context.put_partition(partition.moved(PartitionStatus.OFFLINE))
        return affected
