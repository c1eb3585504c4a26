"""The segments of one log in order. Only the list: what a segment is, `segment.py` knows."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from pybroker.storage.segment import Segment


class Segments:
    """Sorted by base offset, never empty once the log is open. The last one is the active one.

    Changes come from one thread. The list is replaced, never changed, so a reader in another
    thread goes on with the one that it began with.
    """

    __slots__ = ("_state",)

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._state: tuple[Segment, ...] = tuple(
            sorted(segments, key=lambda segment: segment.base_offset)
        )

    @property
    def all(self) -> tuple[Segment, ...]:
        return self._state

    @property
    def active(self) -> Segment:
        return self._state[-1]

    @property
    def first(self) -> Segment:
        return self._state[0]

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segments that may hold `offset` or later ones: from the last that begins at or
        before it."""
        segments = self._state
        if segments and segments[-1].base_offset <= offset:
            return segments[-1:]
        found = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[max(0, found - 1) :]

    def add(self, segment: Segment) -> None:
        """Make `segment` the active one."""
        self._state = (*self._state, segment)

    def remove(self, gone: Iterable[Segment]) -> None:
        removed = set(gone)
        self._state = tuple(segment for segment in self._state if segment not in removed)

    def __len__(self) -> int:
        return len(self._state)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._state)
