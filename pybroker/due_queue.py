"""A queue of keys, ordered by the time at which each key is due. Taking the due keys does not visit
the keys that are not due."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar


class Sortable(Protocol):
    """A hashable key of a queue. Keys that are due at the same time are yielded in ascending
    order."""

    def __lt__(self, other: Any, /) -> bool: ...

    def __hash__(self) -> int: ...


Key = TypeVar("Key", bound=Sortable)


class DueQueue(Generic[Key]):
    """Keys with the times (ms since 1970) at which they are due. A key is in the queue at most
    once, and is never moved to a later time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Key]] = []
        self._queued: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, key: Key, due_ms: int) -> None:
        """Add the key with the time `due_ms`. If the key is already in the queue, keep the earlier
        of its present time and `due_ms`."""
        known_ms = self._queued.get(key)
        if known_ms is None or due_ms < known_ms:
            self._queued[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))

    def take_due(self, now_ms: int) -> Iterator[Key]:
        """Remove and yield the due keys, the earliest first. Due keys that are added during the
        iteration are yielded, too."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, key = heapq.heappop(self._heap)
            if self._queued.get(key) == due_ms:
                del self._queued[key]
                yield key
