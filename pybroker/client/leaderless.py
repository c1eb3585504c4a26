"""The time for which partitions have had no leader, measured by metadata responses.

During an election a partition has no leader for a moment. If all in-sync replicas are down, it has
none until one of them returns. The watch distinguishes the two cases by the elapsed time and the
number of metadata responses.
"""

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
    """A watch that tells which partitions have had no leader for a long time. It receives each
    metadata view once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._view: ClusterView | None = None
        self._gaps: dict[TopicPartition, _Gap] = {}

    def look(self, view: ClusterView, partitions: Iterable[TopicPartition]) -> None:
        """Note a new metadata view. For each of `partitions` that exists without a leader in
        `view`, count the view. Forget all other partitions."""
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
        """Return the partitions that have been without a leader for at least `for_ms`, in each of
        at least three metadata responses. The list is empty if `for_ms` is 0."""
        now = self._clock.monotonic()
        return [
            key
            for key, gap in self._gaps.items()
            if for_ms and gap.answers >= _ANSWERS_MIN and (now - gap.since_s) * 1_000 >= for_ms
        ]
