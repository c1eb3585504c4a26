"""Incomplete replicas that count nevertheless: elected uncleanly because no other replica was
there, or in sync again a moment before their copy was complete. They may not lead.

If other replicas count, an incomplete replica leaves the ISR to them: if they cannot lead either,
leadership would go round for ever. If it is all that counts, it leaves when another replica is
there: then no replica counts, and each reports its log end (`log_end_reports.py`), or an unclean
election takes another one.
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
    """Used from the event loop only."""

    def __init__(
        self, leave: StepAside, logs: LogManager, live: Callable[[], Collection[int]]
    ) -> None:
        """`live` are the brokers that run."""
        self._leave = leave
        self._logs = logs
        self._live = live
        self._refused: set[TopicPartition] = set()
        self._left: set[TopicPartition] = set()

    @property
    def waits(self) -> bool:
        """Whether any of them may have to leave yet."""
        return bool(self._refused)

    def refused(self, key: TopicPartition) -> bool:
        """This replica could not be opened; whether that is because it is incomplete."""
        is_incomplete = key in self._logs.incomplete
        if is_incomplete:
            self._refused.add(key)
        return is_incomplete

    async def look(self) -> bool:
        """Let those leave that should; whether any did."""
        return any([await self._look_at(key) for key in sorted(self._refused)])

    async def _look_at(self, key: TopicPartition) -> bool:
        """Whether the replica has left."""
        self._refused.discard(key)
        if key not in self._logs.incomplete:
            return False
        try:
            changed = await self._leave(key, "incomplete", partial(self._decide, key))
        except CoordError as error:
            log.warning("incomplete replica not withdrawn partition=%s error=%r", key, error)
            self._refused.add(key)
            return False
        if changed is not None and is_orphaned(changed):
            if key in self._left:
                # It was chosen again, so no other replica can lead either: next time it is to.
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
        # Other replicas that count have all records; whether one of them leads by now does not
        # matter to them.
        others = {*changed.isr, *changed.eligible}
        if not others:
            # A lost disk may come back: its operator decides.
            if self._logs.lost_directories or state.leader not in (NO_LEADER, me):
                return None
            others = {*await self._leave.assigned(key)} - {me}
        if others.isdisjoint(self._live()):
            self._refused.add(key)
            return None
        return changed
