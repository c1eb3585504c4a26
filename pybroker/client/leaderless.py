"""How long partitions have been without a leader, as the answers of brokers say it.

Between two leaders a partition has none for a moment; while no replica in sync is there it has none
for as long as that takes. Time and answers tell the two apart. Decides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pybroker.client.metadata import ClusterView
from pybroker.model import TopicPartition
from pybroker.ports import Clock

TOLD_AFTER_MS: Final = 3_000
"""An election takes less. Tools give up then, and a consumer warns."""
_ANSWERS_MIN: Final = 3
"""A client that stood still meanwhile has not asked again."""


@dataclass(slots=True)
class _Gap:
    since_s: float
    answers: int = 0


class LeaderlessWatch:
    """Sees each view of the cluster once."""

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
        """Those without a leader in all answers of the last `for_ms`, and in several; none for
        0."""
        now = self._clock.monotonic()
        return [
            key
            for key, gap in self._gaps.items()
            if for_ms and gap.answers >= _ANSWERS_MIN and (now - gap.since_s) * 1_000 >= for_ms
        ]
