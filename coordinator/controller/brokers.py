"""Brokers that come, go and come back: what becomes of their partitions, and who is told."""

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

logger = logging.getLogger(__name__)


class BrokerChanges:
    """Of one term; changes the context's brokers."""

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
        """See who is registered, and where. A broker that is registered anew was lost and has
        started (KIP-380); one with other endpoints is the same."""
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
            logger.info("brokers_moved brokers=%s", sorted(moved))
        if lost:
            logger.info("brokers_lost brokers=%s", sorted(lost))
        services.journal.brokers_changed(lost, started)
        came_back = lost & current.keys()
        # A leader may have let one of them into the ISR since, and would wait for it.
        left_out = self._left_out(lost)
        await services.machine.refresh(left_out)
        disturbed = self._lose(lost)
        if started:
            logger.info("brokers_started brokers=%s", sorted(started))
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
            # It may have stepped aside by itself, for a log that the power cut short: a leader that
            # let it in before would go on to count it in sync, and never take it back.
            if partition.version > version or not came_back.isdisjoint(partition.replicas):
                notifier.changed_state(key)
        notifier.describe_replicas_of(lost | started)
        await notifier.tell_current_state(started)
        await services.repair(disturbed)
        self._deletions.stop_replicas_of(started)
        await self._deletions.finish()

    def _left_out(self, lost: set[int]) -> dict[TopicPartition, int]:
        """The partitions with a replica on one of these brokers that is not known to be in sync,
        and the versions of their states."""
        return {
            partition.topic_partition: partition.version
            for partition in self._context.kept_partitions()
            if partition.state is not None
            and not lost.intersection(partition.replicas) <= set(partition.state.isr)
        }

    def _lose(self, lost: set[int]) -> set[TopicPartition]:
        """Note that these brokers have ended; those that have started anew, too, were not in sync
        in between. Gives the partitions that have to do without them."""
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
