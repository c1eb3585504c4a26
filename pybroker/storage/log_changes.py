"""Notes the changed partitions for periodic work (retention, compaction, checkpoints, flushes and
others).

A writer changes the log before it adds the note. Periodic work removes the note before it reads the
log. So no change is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pybroker.model import TopicPartition


class LogChanges:
    """The changed partitions of a broker, in one set for each kind of periodic work. Any thread may
    change and copy the sets, because these operations are atomic."""

    __slots__ = ("_readers", "_touched", "doomed", "unflushed", "unsaved")

    def __init__(self) -> None:
        self.unflushed: set[TopicPartition] = set()
        """The logs that may have records above their recovery point."""
        self.unsaved: set[TopicPartition] = set()
        """The partitions whose values in the checkpoint files may be out of date."""
        self.doomed: set[TopicPartition] = set()
        """The logs that may have files of deleted segments on the disk."""
        self._touched: dict[TopicPartition, None] = {}
        """The notes that no reader has taken yet. A dictionary keeps their order, so that a
        simulation repeats it."""
        self._readers: list[ChangeReader] = []

    def note(self, partition: TopicPartition) -> None:
        """Add the partition to the sets of all periodic tasks, so that their next run looks at its
        log."""
        self.note_files(partition)
        self._touched[partition] = None

    def note_files(self, partition: TopicPartition) -> None:
        """Add the partition to the sets `unflushed`, `unsaved` and `doomed`, but do not notify the
        `ChangeReader`s."""
        self.unflushed.add(partition)
        self.unsaved.add(partition)
        self.doomed.add(partition)

    def appended(self, partition: TopicPartition) -> None:
        """Note that the partition's log end offset has changed."""
        self.unflushed.add(partition)
        self._touched[partition] = None

    def committed(self, partition: TopicPartition) -> None:
        """Record that the partition's high watermark has changed."""
        self.unsaved.add(partition)
        self._touched[partition] = None

    def touch(self, partition: TopicPartition) -> None:
        """Notify the `ChangeReader`s of a change of the partition. The change concerns no file: an
        example is a new role (leader or follower)."""
        self._touched[partition] = None

    def reader(self, partitions: Iterable[TopicPartition] = ()) -> ChangeReader:
        """Return a new reader, which gets all notes that are added after this call. The first
        `take` of the reader also returns `partitions`."""
        reader = ChangeReader(self, partitions)
        self._readers.append(reader)
        return reader

    def share(self) -> None:
        """Remove all partitions from `_touched`, and add them to `noted` of every ChangeReader.
        Call this method on the event loop only."""
        touched = self._touched.copy()
        for partition in touched:
            self._touched.pop(partition, None)
        for reader in self._readers:
            reader.noted.update(touched)

    @contextmanager
    def noted(self, partition: TopicPartition) -> Iterator[None]:
        """Return a context manager for code that changes the partition's log. At the end of the
        `with` block it calls `note`, even if the block raises an exception."""
        try:
            yield
        finally:
            self.note(partition)


class ChangeReader:
    """Tells one kind of periodic work which partitions have changed. The work runs on the event
    loop."""

    __slots__ = ("_changes", "noted")

    def __init__(self, changes: LogChanges, partitions: Iterable[TopicPartition]) -> None:
        self._changes = changes
        self.noted: dict[TopicPartition, None] = dict.fromkeys(partitions)
        """The partitions whose notes this reader has got, but not returned yet."""

    def take(self) -> list[TopicPartition]:
        """Remove and return all partitions in `noted`, oldest first. Call this before reading the
        changed logs. The next call then returns the partitions that change during the reading."""
        self._changes.share()
        taken = list(self.noted)
        self.noted.clear()
        return taken

    def note(self, partition: TopicPartition) -> None:
        """Let the next `take` return the partition again."""
        self.noted[partition] = None

    def forget(self, partition: TopicPartition) -> None:
        """Undo a call of `note`."""
        self.noted.pop(partition, None)


def take(noted: set[TopicPartition]) -> set[TopicPartition]:
    """Remove and return all partitions in the set. Call it before the logs are read. Otherwise a
    change between the read and the call would be missed."""
    taken = noted.copy()
    noted.difference_update(taken)
    return taken
