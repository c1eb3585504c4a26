"""Elects leaders of orphaned partitions: partitions with no leader, no in-sync replica and no
eligible leader replica (KIP-966), for example after power losses.

The controller waits until all assigned replicas are live and have reported their log ends, and
elects a replica with the longest log. If unclean elections are allowed, the controller elects any
live replica at once.

A log end report is valid only until the broker registers again, which raises its incarnation
(KIP-903). So the multi that stores the election checks the incarnations of the brokers in the new
ISR.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from pybroker.coordinator.controller.decisions import Circumstances, succeeded
from pybroker.coordinator.controller.leaders import Elected
from pybroker.coordinator.controller.partition_state_machine import Decide
from pybroker.coordinator.controller.partitions import Partition, Reason, StateWrite
from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.zookeeper.log_end_reports import LogEndReport, read_log_end
from pybroker.coordinator.zookeeper.registry import read_incarnation
from pybroker.model import TopicPartition, is_orphaned

log = logging.getLogger(__name__)


def longest(
    partition: Partition, reports: Mapping[int, LogEndReport], hosts: Collection[int]
) -> Sequence[int]:
    """Return the replicas with the longest log, in the order of the assignment. Logs are compared
    by their last leader epochs, then by their end offsets.

    The result is empty unless every assigned replica is on one of `hosts` (the live brokers that
    may lead) and has reported its log end in the present leader epoch. A log with a last epoch
    after the partition's leader epoch is damaged and left out.
    """
    state = partition.state
    assert state is not None
    ends = {}
    for replica in partition.replicas:
        report = reports.get(replica)
        if replica not in hosts or report is None or report.leader_epoch != state.leader_epoch:
            return ()
        if report.epoch <= state.leader_epoch:
            ends[replica] = report.epoch, report.end
    return [replica for replica, end in ends.items() if end == max(ends.values())]


def decide_longest(
    partition: Partition, reports: Mapping[int, LogEndReport], now: Circumstances
) -> StateWrite | None:
    """Return the state in which the replicas that `longest` returns are the ISR, and the first of
    these replicas is the leader. Return None if `longest` returns no replica, or if the partition
    has a leader, an in-sync replica or an eligible leader replica."""
    if partition.state is None or not is_orphaned(partition.state):
        return None
    isr = tuple(longest(partition, reports, now.candidates))
    if not isr:
        return None
    write = succeeded(partition, Elected(isr[0], isr, unclean=True), now, Reason.POWER_LOSS)
    reported = tuple((replica, reports[replica].incarnation) for replica in isr)
    return dataclasses.replace(write, incarnations=reported)


class Suspects:
    """Elects a leader for each orphaned partition, in one controller's term. An orphaned partition
    has no leader, no in-sync replica and no eligible leader replica (KIP-966)."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services

    async def look_at_all(self) -> None:
        """Call `look` for all partitions."""
        await self.look([each.topic_partition for each in self._services.context.kept_partitions()])

    async def look(self, keys: Iterable[TopicPartition]) -> None:
        """Elect a leader for each partition in `keys` that is orphaned (see the class), if all its
        replicas are live and have reported their log ends. Raises ControllerMoved, CoordError."""
        services = self._services
        incarnations: dict[int, int] = {}
        for key in keys:
            partition = services.context.partitions.get(key)
            if partition is None or partition.state is None or not is_orphaned(partition.state):
                continue
            reports = await self._read(partition, incarnations)
            await services.machine.move([key], self._decision(reports))

    def _decision(self, reports: Mapping[int, LogEndReport]) -> Decide:
        return lambda each: decide_longest(each, reports, self._services.circumstances(each))

    async def _read(
        self, partition: Partition, incarnations: dict[int, int]
    ) -> dict[int, LogEndReport]:
        """Return replica -> log end report, without reports from an earlier incarnation of the
        replica's broker. `incarnations` is a cache of broker id -> incarnation, which this call
        extends."""
        key, coord = partition.topic_partition, self._services.coord

        async def read(replica: int) -> LogEndReport | None:
            report = await read_log_end(coord, key, replica)
            if report is None:
                return None
            if replica not in incarnations:
                incarnations[replica] = await read_incarnation(coord, replica)
            return report if report.incarnation == incarnations[replica] else None

        return await read_each(read, partition.replicas)
