"""Files and directories that wait for their removal. The broker renames them at once, and removes
them after file.delete.delay.ms."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pybroker.errors import StorageError

log = logging.getLogger(__name__)


class PendingDeletions:
    """The renamed files of deleted segments or partitions, each with the time of its removal. The
    function `remove` removes the file or directory at a path."""

    __slots__ = ("_remove", "_waiting")

    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove
        self._waiting: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, due_ms: int, path: str) -> None:
        self._waiting.append((due_ms, path))

    def is_due(self, now_ms: int) -> bool:
        return any(due_ms <= now_ms for due_ms, _ in self._waiting)

    def remove_due(self, now_ms: int) -> None:
        """Remove the files whose delay has passed at the wall-clock time `now_ms`. Errors are
        logged, not raised."""
        # The event loop may add paths meanwhile, so the list is replaced before it is read.
        waiting, self._waiting = self._waiting, []
        self._waiting.extend(entry for entry in waiting if entry[0] > now_ms)
        for path in [path for due_ms, path in waiting if due_ms <= now_ms]:
            try:
                self._remove(path)
            except StorageError as error:
                log.warning(
                    "deleted file not removed yet, the next start removes it path=%s error=%s",
                    path,
                    error,
                )
