"""The limit for data losses: at any time, at most min.insync.replicas - 1 brokers may count as
having lost data. Within this limit, every lost record is a bug.

A broker that has lost data counts until all of these are true:

- the broker has all committed records;
- the broker is in sync;
- no file that the broker uses has a flipped bit. The broker can find a flipped bit later.
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
    """The limit for data losses: at most `min_isr` - 1 brokers may have lost data and not yet
    regained it."""

    def __init__(self, cluster: SimCluster, min_isr: int) -> None:
        self._cluster = cluster
        self._most = min_isr - 1
        self._harmed: set[int] = set()

    def allows(self, broker: int) -> bool:
        """Return whether the disk of `broker` may lose data now."""
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
        """Return whether the broker's replica of the partition `key` is in sync and has all
        committed records."""
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
    """Return whether the broker still uses the file: neither the file nor its directory is marked
    as deleted, stray or corrupt."""
    *_, folder, name = path.split("/")
    is_aside = is_stray_directory(folder) or is_deleted_directory(folder)
    return not is_aside and not name.endswith((CORRUPT_SUFFIX, DELETED_SUFFIX))
