"""Decides which logs retention looks at. A log that nobody changes has nothing to delete before its
oldest segment is too old, so it waits in a queue until then.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final

from pybroker.due_queue import DueQueue
from pybroker.errors import CorruptionError, StorageError
from pybroker.model import TopicPartition
from pybroker.storage.log import Log
from pybroker.storage.log_changes import ChangeReader
from pybroker.storage.log_config import UNLIMITED

LOOK_MS_MAX: Final = 3_600_000
"""Retention looks at each log at least this often, even without a note. So it removes idle
producers, whose time limit may have changed, and finds logs whose note was lost."""


class RetentionSchedule:
    """The logs at which retention has to look. `changes` has notes of each change of a log and of
    its high watermark. Used from the event loop only."""

    def __init__(self, changes: ChangeReader, log_of: Callable[[TopicPartition], Log | None]):
        self._changes = changes
        self._log_of = log_of
        self._waiting = DueQueue[TopicPartition]()

    def due(self, now_ms: int) -> list[TopicPartition]:
        """Return the logs at which retention looks now: the changed ones, and those that may have a
        segment whose age (ms since 1970) exceeds the limit. The caller calls `looked_at` for
        each."""
        found = dict.fromkeys(self._changes.take())
        found.update(dict.fromkeys(self._waiting.take_due(now_ms)))
        return [key for key in found if self._log_of(key) is not None]

    def looked_at(self, key: TopicPartition, now_ms: int, busy: Container[TopicPartition]) -> None:
        """Record that retention has deleted the expired segments of this log, and compute when the
        log is due again. A log is due again at the next call if retention could not change it now:
        its partition is in `busy`, or the log cleaner reads it."""
        log = self._log_of(key)
        if log is None:
            return
        if key in busy or log.segments.are_pinned:
            self._changes.note(key)
            return
        ends = [now_ms + LOOK_MS_MAX]
        if log.failure is None and log.damage is None:
            ends += _ends(log)
        self._waiting.put(key, min(ends))


def _ends(log: Log) -> Iterator[int]:
    """Yield the times (ms since 1970) after which the oldest segment is too old."""
    first, config = log.segments.first, log.config
    if first.size and config.deletes and config.retention_ms != UNLIMITED:
        try:
            yield first.retention_timestamp() + config.retention_ms + 1
        except (CorruptionError, StorageError):
            return  # retention reports it, and the log is due again after LOOK_MS_MAX
