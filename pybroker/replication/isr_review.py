"""The periodic review of the ISR: finds followers that lag, and leaders that have to ask ZooKeeper
whether they still lead."""

from __future__ import annotations

import asyncio
from typing import Final

from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.replication.leader_state import LOOK_SHARE, SessionRequests
from pybroker.replication.manager import ReplicaManager

_PARTITIONS_A_TURN: Final = 500

Sessions = tuple[SessionRequests, ...]


class IsrReview:
    """Finds and proposes the ISR changes that are due in the partitions that this broker leads. Use
    this class from the event loop only."""

    def __init__(self, replicas: ReplicaManager, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._changes = replicas.changes.reader(replicas.partitions)
        self._quiet: dict[Sessions, set[TopicPartition]] = {}
        """Fetch sessions of followers -> the partitions that the last review found settled. An
        unchanged partition stays settled while these sessions go on. Changed partitions are not
        removed from here."""

    async def run(self) -> None:
        """Propose the ISR change that is due, if any, for each partition that this broker leads."""
        now = self._clock.monotonic()
        self._wake_quiet(now)
        for number, key in enumerate(self._changes.take()):
            self._look_at(key, now)
            if number % _PARTITIONS_A_TURN == _PARTITIONS_A_TURN - 1:
                await asyncio.sleep(0)
                now = self._clock.monotonic()

    def _wake_quiet(self, now: float) -> None:
        """Schedule a review of each settled partition, if a follower has sent fewer than two
        requests lately in its fetch session. A settled partition needed no ISR change and no check
        at its last review."""
        oldest_s = now - self._replicas.lag_max_s * LOOK_SHARE
        for sessions in list(self._quiet):
            if any(each.last_but_one_s < oldest_s for each in sessions):
                for key in sorted(self._quiet.pop(sessions)):
                    self._changes.note(key)

    def _look_at(self, key: TopicPartition, now: float) -> None:
        partition = self._replicas.partitions.get(key)
        if partition is None or partition.followers is None or not partition.is_replicated:
            return
        followers, lag_max_s = partition.followers, self._replicas.lag_max_s
        is_settled = followers.is_settled(partition.log.log_end_offset, now, lag_max_s)
        sessions = followers.sessions if is_settled else None
        if sessions is None:
            self._changes.note(key)
        else:
            self._quiet.setdefault(sessions, set()).add(key)
        if not is_settled:
            self._replicas.review_isr(partition)
