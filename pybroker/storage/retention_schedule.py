"""Decides when retention checks a log: after a change of the log or of the high watermark, when the
oldest segment becomes older than retention.ms, and at least once in LOOK_MS_MAX."""

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
"""Retention checks each log at least once in this time (ms), even if no change was noted: a note
may have been lost, or the time limit for idle producers may have changed."""


class RetentionSchedule:
    """The logs that retention has to check. `changes` yields the partitions whose log or high
    watermark has changed. Use the schedule from the event loop only."""

    def __init__(self, changes: ChangeReader, log_of: Callable[[TopicPartition], Log | None]):
        self._changes = changes
        self._log_of = log_of
        self._waiting = DueQueue[TopicPartition]()

    def due(self, now_ms: int) -> list[TopicPartition]:
        """Return the partitions with logs that are due for a retention check at the time `now_ms`
        (ms since 1970). The caller must call `looked_at` for each."""
        found = dict.fromkeys(self._changes.take())
        found.update(dict.fromkeys(self._waiting.take_due(now_ms)))
        return [key for key in found if self._log_of(key) is not None]

    def looked_at(self, key: TopicPartition, now_ms: int, busy: Container[TopicPartition]) -> None:
        """Schedule the next check of a log that `due` has returned. If retention had to skip the
        log, the next `due` returns the log again. Retention skips a log that is in `busy` or that
        the log cleaner reads. `now_ms` is in ms since 1970."""
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
    """Yield the time (ms since 1970) when the oldest segment becomes older than retention.ms. Yield
    nothing if no time limit applies, or if the segment cannot be read."""
    first, config = log.segments.first, log.config
    if first.size and config.deletes and config.retention_ms != UNLIMITED:
        try:
            yield first.retention_timestamp() + config.retention_ms + 1
        except (CorruptionError, StorageError):
            return  # retention reports it, and the log is due again after LOOK_MS_MAX
