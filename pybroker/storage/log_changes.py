"""Notes which logs have changed since a periodic duty last read them.

A duty reads only the noted logs, so its work is proportional to the changes, not to the number of
logs. The order of the steps ensures that no change is missed. A writer first changes the log, then
notes it. The duty first removes the note, then reads the log. So if the log changes meanwhile, the
duty reads the change, or the writer notes the log again. A superfluous note does no harm.
Retention notes every log, so a missing note delays a duty by at most
log.retention.check.interval.ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.model import TopicPartition


class LogChanges:
    """The notes about the changed logs of a broker, a set for each periodic duty. Any thread may
    change a set: adding, discarding and copying are atomic."""

    __slots__ = ("doomed", "unflushed", "unsaved")

    def __init__(self) -> None:
        self.unflushed: set[TopicPartition] = set()
        """The logs that may have records above their recovery point."""
        self.unsaved: set[TopicPartition] = set()
        """The partitions whose values in the checkpoint files may be out of date."""
        self.doomed: set[TopicPartition] = set()
        """The logs that may have files of deleted segments on the disk."""

    def note(self, partition: TopicPartition) -> None:
        """Add the partition's log to the notes of every periodic duty."""
        self.unflushed.add(partition)
        self.unsaved.add(partition)
        self.doomed.add(partition)

    @contextmanager
    def noted(self, partition: TopicPartition) -> Iterator[None]:
        """Wrap a change of the partition's log: the log is noted afterwards, also after a
        failure."""
        try:
            yield
        finally:
            self.note(partition)


def take(noted: set[TopicPartition]) -> set[TopicPartition]:
    """Remove all notes from the set and return them. The caller reads the logs afterwards."""
    taken = noted.copy()
    noted.difference_update(taken)
    return taken
