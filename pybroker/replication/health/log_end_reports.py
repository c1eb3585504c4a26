"""Reports to the controller the log end offsets of this broker's replicas of orphaned partitions.

An orphaned partition has no leader, no in-sync replica and no eligible replica (KIP-966). Each
broker with an assigned replica writes the log end offset to ZooKeeper. The controller elects a
replica with the longest log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from pybroker.background import RetryLoop
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.log_end_reports import LogEndReport, write_log_end
from pybroker.coordinator.zookeeper.schemas import encode_partitions
from pybroker.errors import CoordError, NoNode
from pybroker.model import NO_TOPIC_ID, TopicPartition, is_orphaned
from pybroker.ports import Coord
from pybroker.replication.isr_notifications import PARTITIONS_MAX
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5

_Report = tuple[uuid.UUID, LogEndReport]
"""A topic id, and the report for a partition of this topic."""


class LogEndReports:
    """While `loop` runs, writes to ZooKeeper the log end offset of each replica on this broker
    whose partition is orphaned. An orphaned partition has no leader, no in-sync replica and no
    eligible replica."""

    def __init__(
        self, coord: Coord, replicas: ReplicaManager, incarnation: Callable[[], int]
    ) -> None:
        """`incarnation` returns the incarnation of this broker (its number in ZooKeeper that grows
        with every registration), or -1 while unknown."""
        self._coord = coord
        self._replicas = replicas
        self._incarnation = incarnation
        self._told: dict[TopicPartition, _Report] = {}
        """The last report that was written for each orphaned partition. An equal report is not
        written again."""
        self._asked: dict[TopicPartition, None] = {}
        self.loop = RetryLoop("log-end-reports", self._report_all, _RETRY_S)
        replicas.on_orphaned = self._orphaned

    def again(self) -> None:
        """Write all reports again, with the broker's new incarnation (its number in ZooKeeper that
        grows with every registration). Call this method after each change of the incarnation."""
        self._ask(self._told)

    def _orphaned(self, partition: Partition) -> None:
        self._ask((partition.topic_partition,))

    def _ask(self, keys: Iterable[TopicPartition]) -> None:
        self._asked.update(dict.fromkeys(keys))
        self.loop.wake()

    async def _report_all(self) -> bool:
        """Write the requested reports. Return whether some writes must be tried again."""
        asked, self._asked = list(self._asked), {}
        for start in range(0, len(asked), PARTITIONS_MAX):
            some = asked[start : start + PARTITIONS_MAX]
            try:
                await self._report(some)
            except CoordError as error:
                log.info(
                    "log ends not reported, trying again partitions=%d error=%r", len(some), error
                )
                self._asked.update(dict.fromkeys(some))
        return bool(self._asked)

    async def _report(self, keys: Iterable[TopicPartition]) -> None:
        """Write the log end offsets of these partitions to ZooKeeper, and an ISR change
        notification for the controller."""
        reports = {}
        for key in keys:
            due = self._report_of(key)
            if due is None:
                continue
            topic_id, report = due
            try:
                await write_log_end(self._coord, key, topic_id, report)
            except NoNode:  # the topic is deleted, and StopReplica has not arrived yet
                self._asked[key] = None
                continue
            log.info(
                "log end of orphaned partition reported partition=%s epoch=%d log_end=%d",
                key,
                report.epoch,
                report.end,
            )
            reports[key] = due
        if reports:
            notice = encode_partitions(reports)
            await self._coord.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
            self._told.update(reports)

    def _report_of(self, key: TopicPartition) -> _Report | None:
        """Return the partition's topic id and the report to write. Return None if the partition has
        a leader, an in-sync replica or an eligible replica, if the report is already written, or if
        the broker's incarnation is unknown."""
        partition = self._replicas.partitions.get(key)
        state = None if partition is None else partition.state
        if partition is None or state is None or not is_orphaned(state):
            self._told.pop(key, None)
            return None
        incarnation = self._incarnation()
        if incarnation < 0:
            self._asked[key] = None
            return None
        report = LogEndReport(
            replica=self._replicas.broker_id,
            epoch=partition.log.latest_epoch,
            end=partition.log.log_end_offset,
            leader_epoch=state.leader_epoch,
            incarnation=incarnation,
        )
        due = partition.topic_id or NO_TOPIC_ID, report
        return None if self._told.get(key) == due else due
