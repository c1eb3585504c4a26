"""Files that are renamed now and removed after a delay: readers may still use them, and an operator
may still want them back (file.delete.delay.ms)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pybroker.errors import StorageError

log = logging.getLogger(__name__)


class PendingDeletions:
    """Calls `remove` with each path when its delay has passed."""

    __slots__ = ("_remove", "_waiting")

    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove
        self._waiting: list[tuple[int, str]] = []

    def add(self, due_ms: int, path: str) -> None:
        self._waiting.append((due_ms, path))

    def is_due(self, now_ms: int) -> bool:
        return any(due_ms <= now_ms for due_ms, _ in self._waiting)

    def remove_due(self, now_ms: int) -> None:
        """Remove the files whose delay has passed. A file that the disk refuses to remove is left
        to the next start."""
        # Runs in a thread while the event loop may add more: swapped, not rebuilt.
        waiting, self._waiting = self._waiting, []
        self._waiting.extend(entry for entry in waiting if entry[0] > now_ms)
        for path in [path for due_ms, path in waiting if due_ms <= now_ms]:
            try:
                self._remove(path)
            except StorageError as error:
                log.warning("deleted file not removed path=%s error=%s", path, error)
