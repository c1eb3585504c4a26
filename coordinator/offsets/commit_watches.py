"""Which offsets are committed while somebody looks for those that may be removed."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.coordinator.groups.records import OffsetKey
from pybroker.model import TopicPartition

Touched = set[OffsetKey]
"""What was committed since somebody began to look."""


class Watches:
    """Of one store."""

    def __init__(self) -> None:
        self._open: list[Touched] = []

    def begin(self) -> Touched:
        """Filled with what is noted from now on, until it is ended."""
        touched: Touched = set()
        self._open.append(touched)
        return touched

    def end(self, touched: Touched) -> None:
        self._open = [each for each in self._open if each is not touched]

    def note(self, group_id: str, keys: Iterable[TopicPartition]) -> None:
        """These are being committed."""
        if self._open:
            noted = {OffsetKey(group_id, key) for key in keys}
            for touched in self._open:
                touched |= noted
