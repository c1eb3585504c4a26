"""Which logs changed since the periodic duties last looked at them.

A duty looks only at the noted logs, so its cost is proportional to the changes, not to the number
of logs. The order keeps a change from being lost: the log changes first and is noted second; the
duty removes the note first and reads the log second. So a change during the duty is read or noted
again. A note only asks for a look: a superfluous one costs that look. Retention notes every log, so
a missing note delays a duty by log.retention.check.interval.ms at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.model import TopicPartition


class LogChanges:
    """The notes of all logs of a broker. Each set may be changed from any thread: adding,
    discarding and copying are atomic."""

    __slots__ = ("doomed", "unflushed", "unsaved")

    def __init__(self) -> None:
        self.unflushed: set[TopicPartition] = set()
        """Logs that may have records above their recovery point."""
        self.unsaved: set[TopicPartition] = set()
        """Partitions whose values in the checkpoints may be outdated."""
        self.doomed: set[TopicPartition] = set()
        """Logs that may have deleted files on the disk."""

    def note(self, partition: TopicPartition) -> None:
        """Let every duty look at the partition."""
        self.unflushed.add(partition)
        self.unsaved.add(partition)
        self.doomed.add(partition)

    @contextmanager
    def noted(self, partition: TopicPartition) -> Iterator[None]:
        """Wrap a change of the log: it is noted afterwards, also if it fails midway."""
        try:
            yield
        finally:
            self.note(partition)


def take(noted: set[TopicPartition]) -> set[TopicPartition]:
    """Remove and return all notes, before the logs are read."""
    taken = noted.copy()
    noted.difference_update(taken)
    return taken
