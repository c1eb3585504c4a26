"""Measures how long partitions have had no leader, by the brokers' metadata answers.

During an election a partition has no leader for a moment. While its in-sync replicas are all down
it has none until one of them returns. The watch tells the two apart by the time that has passed and
by the number of answers. It decides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pybroker.client.metadata import ClusterView
from pybroker.model import TopicPartition
from pybroker.ports import Clock

TOLD_AFTER_MS: Final = 3_000
"""An election takes less. Tools give up after this time, and a consumer warns."""
_ANSWERS_MIN: Final = 3
"""A client that was paused has not refreshed its metadata meanwhile."""


@dataclass(slots=True)
class _Gap:
    since_s: float
    answers: int = 0


class LeaderlessWatch:
    """Receives each view of the cluster once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._view: ClusterView | None = None
        self._gaps: dict[TopicPartition, _Gap] = {}

    def look(self, view: ClusterView, partitions: Iterable[TopicPartition]) -> None:
        """Count this answer for those of the partitions that exist and have no leader in it."""
        if view is self._view:
            return
        self._view = view
        now = self._clock.monotonic()
        before = self._gaps
        self._gaps = {
            key: before.get(key) or _Gap(now)
            for key in partitions
            if view.partition(key) is not None and view.leader(key) is None
        }
        for gap in self._gaps.values():
            gap.answers += 1

    def leaderless(self, for_ms: int) -> list[TopicPartition]:
        """Return the partitions without a leader in all answers of the last `for_ms`, and in
        several; none for 0."""
        now = self._clock.monotonic()
        return [
            key
            for key, gap in self._gaps.items()
            if for_ms and gap.answers >= _ANSWERS_MIN and (now - gap.since_s) * 1_000 >= for_ms
        ]
