"""Removes incomplete replicas from the ISR and the eligible replicas of their partitions.

An incomplete replica may not lead. It can be in the ISR nevertheless: after an unclean election
while no other replica was live, or shortly before its catch-up is complete.

If other replicas are in sync or eligible, the incomplete replica leaves the ISR at once. Otherwise
the controller could elect it again and again. If it is the only electable replica, it leaves when
another assigned replica is on a live broker. The partition is then orphaned: each replica reports
its log end (`log_end_reports.py`), or an unclean election chooses another replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial

from pybroker.coordinator.zookeeper.topic_nodes import Topic
from pybroker.errors import CoordError
from pybroker.model import NO_LEADER, PartitionState, TopicPartition, is_orphaned
from pybroker.replication.health.step_aside import StepAside, without
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)


class IncompleteReplicas:
    """The incomplete replicas of one broker that a LeaderAndIsr command made leader, and that the
    broker refused to open. Used from the event loop only."""

    def __init__(
        self, leave: StepAside, logs: LogManager, live: Callable[[], Collection[int]]
    ) -> None:
        """`leave` removes a replica from its ISR by a write of the partition's state node. `live`
        returns the ids of the registered brokers."""
        self._leave = leave
        self._logs = logs
        self._live = live
        self._refused: set[TopicPartition] = set()
        self._left: set[TopicPartition] = set()

    @property
    def waits(self) -> bool:
        """Whether some incomplete replicas still have to leave the ISR."""
        return bool(self._refused)

    def refused(self, key: TopicPartition) -> bool:
        """Note that this broker could not open its replica of `key` for a LeaderAndIsr command.
        Return whether the replica is incomplete: `look` then removes it from the ISR."""
        is_incomplete = key in self._logs.incomplete
        if is_incomplete:
            self._refused.add(key)
        return is_incomplete

    async def look(self) -> bool:
        """Try to remove from its ISR each replica that `refused` has noted. A replica stays if it
        must not leave the ISR yet. Return whether any replica left."""
        return any([await self._look_at(key) for key in sorted(self._refused)])

    async def _look_at(self, key: TopicPartition) -> bool:
        """Remove the replica of `key` from the ISR if it can leave it now. Return whether it
        left."""
        self._refused.discard(key)
        if key not in self._logs.incomplete:
            return False
        try:
            changed = await self._leave(key, "incomplete", partial(self._decide, key))
        except CoordError as error:
            log.warning(
                "incomplete replica cannot leave the isr, trying again partition=%s error=%r",
                key,
                error,
            )
            self._refused.add(key)
            return False
        if changed is not None and is_orphaned(changed):
            if key in self._left:
                # The controller elected this replica again after it had left the ISR, so no other
                # replica can lead. Released, it leads after the next election.
                self._logs.incomplete.released.add(key)
            self._left.add(key)
        return changed is not None

    async def _decide(
        self, key: TopicPartition, state: PartitionState, _: Topic
    ) -> PartitionState | None:
        me = self._leave.broker_id
        changed = without(state, me)
        if changed is None:
            return None
        # In-sync and eligible replicas have all committed records, so any of them can lead.
        others = {*changed.isr, *changed.eligible}
        if not others:
            # The lost log directory may return with the records: the operator decides.
            if self._logs.lost_directories or state.leader not in (NO_LEADER, me):
                return None
            others = {*await self._leave.assigned(key)} - {me}
        if others.isdisjoint(self._live()):
            self._refused.add(key)
            return None
        return changed
