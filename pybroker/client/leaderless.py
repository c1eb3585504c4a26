"""Finds partitions that have had no leader for a minimum time and a minimum number of metadata
responses. A short election appears in only one or two responses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pybroker.client.metadata import ClusterView
from pybroker.model import TopicPartition
from pybroker.ports import Clock

REPORT_AFTER_MS: Final = 3_000
"""The time after which a partition counts as leaderless: longer than an election takes. Tools then
fail, and a consumer logs a warning."""
_ANSWERS_MIN: Final = 3
"""The minimum number of metadata responses that show no leader. A paused process may pass the time
limit without any metadata response."""


@dataclass(slots=True)
class _Gap:
    since_s: float
    answers: int = 0


class LeaderlessWatch:
    """Tells which partitions have had no leader for a long time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._view: ClusterView | None = None
        self._gaps: dict[TopicPartition, _Gap] = {}

    def look(self, view: ClusterView, partitions: Iterable[TopicPartition]) -> None:
        """Process new metadata. From now on, watch only whether `partitions` have leaders."""
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
        """Return the partitions that have had no leader for at least `for_ms`, and in at least
        three metadata responses. Return none if `for_ms` is 0."""
        now = self._clock.monotonic()
        return [
            key
            for key, gap in self._gaps.items()
            if for_ms and gap.answers >= _ANSWERS_MIN and (now - gap.since_s) * 1_000 >= for_ms
        ]
