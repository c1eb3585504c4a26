"""Collects the keys of the offsets that clients commit during a search for removable offsets. The
removal that follows the search must keep these offsets."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.coordinator.groups.records import OffsetKey
from pybroker.model import TopicPartition

RecentCommits = set[OffsetKey]
"""The keys of the offsets that were committed since a search began."""


class Watches:
    """Collects the keys of the offsets that are committed during a search for removable offsets.
    Call `begin` before the search, and `end` after it."""

    def __init__(self) -> None:
        self._open: list[RecentCommits] = []

    def begin(self) -> RecentCommits:
        """Return a new, empty set. Until `end` is called with this set, `note` adds to the set the
        key of each offset that a client commits."""
        recent_commits: RecentCommits = set()
        self._open.append(recent_commits)
        return recent_commits

    def end(self, recent_commits: RecentCommits) -> None:
        self._open = [each for each in self._open if each is not recent_commits]

    def note(self, group_id: str, keys: Iterable[TopicPartition]) -> None:
        """Record that the group commits offsets of these partitions."""
        if self._open:
            noted = {OffsetKey(group_id, key) for key in keys}
            for recent_commits in self._open:
                recent_commits |= noted
