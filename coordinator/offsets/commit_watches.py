"""The offsets that are committed during a search for removable offsets: the search must not remove
them."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.coordinator.groups.records import OffsetKey
from pybroker.model import TopicPartition

Touched = set[OffsetKey]
"""The keys of the offsets that were committed since a search began."""


class Watches:
    """The searches under way in one offset store."""

    def __init__(self) -> None:
        self._open: list[Touched] = []

    def begin(self) -> Touched:
        """Begin a search. Return a set to which `note` adds each commit, until `end`."""
        touched: Touched = set()
        self._open.append(touched)
        return touched

    def end(self, touched: Touched) -> None:
        self._open = [each for each in self._open if each is not touched]

    def note(self, group_id: str, keys: Iterable[TopicPartition]) -> None:
        """Add the offsets of these partitions, which the group commits, to every search under
        way."""
        if self._open:
            noted = {OffsetKey(group_id, key) for key in keys}
            for touched in self._open:
                touched |= noted
