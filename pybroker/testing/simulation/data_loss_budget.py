"""The limit on the number of brokers whose disks may have lost data at the same time. Within this
limit every lost record is a bug.

An acknowledged record is on min.insync.replicas brokers, so all of them but one may lose data. A
broker that lost data counts until it is in sync again with all committed records, and its disk has
no flipped bit any more. A broker may detect a flipped bit much later. It then discards all records
after the bit, including those that it has copied since the bit was flipped.
"""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.model import PartitionState, TopicPartition
from pybroker.storage.filename import (
    CORRUPT_SUFFIX,
    DELETED_SUFFIX,
    is_deleted_directory,
    is_stray_directory,
)
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.view import replica, stored_states


class DataLossBudget:
    """The set of brokers that have lost data: at most `min_isr` - 1 brokers."""

    def __init__(self, cluster: SimCluster, min_isr: int) -> None:
        self._cluster = cluster
        self._most = min_isr - 1
        self._harmed: set[int] = set()

    def allows(self, broker: int) -> bool:
        """Return whether `broker` may lose data now: whether the number of brokers that have lost
        data, including `broker`, stays within the limit."""
        states = stored_states(self._cluster)
        self._harmed = {each for each in self._harmed if not self._is_whole(each, states)}
        return len(self._harmed | {broker}) <= self._most

    def spend(self, broker: int) -> None:
        self._harmed.add(broker)

    def _is_whole(self, broker: int, states: Mapping[TopicPartition, PartitionState]) -> bool:
        if any(_is_used(path) for path in self._cluster.brokers[broker].disk.flipped()):
            return False
        return all(self._has_all(broker, key, state) for key, state in states.items())

    def _has_all(self, broker: int, key: TopicPartition, state: PartitionState) -> bool:
        """Return whether the broker's replica of the partition `key`, whose state is `state`, is in
        sync and has all committed records. Every broker has a replica of every partition."""
        mine = replica(self._cluster, broker, key)
        leaders = replica(self._cluster, state.leader, key)
        if mine is None or leaders is None or not leaders.is_leader or broker not in state.isr:
            return False
        if not mine.leader_epoch == leaders.leader_epoch == state.leader_epoch:
            return False
        # Until the high watermark reaches the start of the leader epoch, it may be below records
        # that the previous leader acknowledged.
        knows = leaders.high_watermark >= leaders.epoch_start
        return knows and mine.log.log_end_offset >= leaders.high_watermark


def _is_used(path: str) -> bool:
    """Return whether the broker uses the file at this path. It does not use files that are marked
    as deleted, stray or corrupt."""
    *_, folder, name = path.split("/")
    is_aside = is_stray_directory(folder) or is_deleted_directory(folder)
    return not is_aside and not name.endswith((CORRUPT_SUFFIX, DELETED_SUFFIX))
