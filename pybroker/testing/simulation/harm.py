"""How many disks may be harmed at a time, so that what is lost is always a bug.

What is acknowledged was on as many brokers as min.insync.replicas says. So all of these but one may
have lost it; a broker that did counts until it is in sync again with all that is committed, and
nothing on its disk is rotten: that may be found long after, and cost it what it has copied since.
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


class HarmAccount:
    """Who has lost something, as far as `min_isr` allows it."""

    def __init__(self, cluster: SimCluster, min_isr: int) -> None:
        self._cluster = cluster
        self._most = min_isr - 1
        self._harmed: set[int] = set()

    def may_harm(self, broker: int) -> bool:
        """Whether this one may lose something now, besides those that have."""
        states = stored_states(self._cluster)
        self._harmed = {each for each in self._harmed if not self._is_whole(each, states)}
        return len(self._harmed | {broker}) <= self._most

    def harm(self, broker: int) -> None:
        self._harmed.add(broker)

    def _is_whole(self, broker: int, states: Mapping[TopicPartition, PartitionState]) -> bool:
        if any(_is_used(path) for path in self._cluster.brokers[broker].disk.flipped()):
            return False
        return all(self._has_all(broker, key, state) for key, state in states.items())

    def _has_all(self, broker: int, key: TopicPartition, state: PartitionState) -> bool:
        """Every broker has a replica of every partition."""
        mine = replica(self._cluster, broker, key)
        leaders = replica(self._cluster, state.leader, key)
        if mine is None or leaders is None or not leaders.is_leader or broker not in state.isr:
            return False
        if not mine.leader_epoch == leaders.leader_epoch == state.leader_epoch:
            return False
        # Before that its high watermark may be older than what its predecessor acknowledged.
        knows = leaders.high_watermark >= leaders.epoch_start
        return knows and mine.log.log_end_offset >= leaders.high_watermark


def _is_used(path: str) -> bool:
    """Not what lies about until it is deleted, or until somebody looks into it."""
    *_, folder, name = path.split("/")
    is_aside = is_stray_directory(folder) or is_deleted_directory(folder)
    return not is_aside and not name.endswith((CORRUPT_SUFFIX, DELETED_SUFFIX))
