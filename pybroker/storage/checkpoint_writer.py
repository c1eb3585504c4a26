"""Writes the checkpoint files of all log directories."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial

from pybroker.errors import DiskFull, StorageError
from pybroker.model import TopicPartition
from pybroker.storage import checkpointed, chores
from pybroker.storage.directory import LogDirectory
from pybroker.storage.log import Log
from pybroker.storage.log_changes import LogChanges, take
from pybroker.storage.log_table import LogTable

HighWatermarks = Mapping[TopicPartition, int]
"""Partition -> its current high watermark. The writer reads each value just before it writes it,
because a truncation may lower it at any time. A partition that is not in the mapping keeps its
value in the file."""


class CheckpointWriter:
    """Writes the checkpoint files of all usable log directories. All methods wait for the disk. On
    a full disk the files keep their older, lower values. The broker can start from lower values."""

    def __init__(
        self,
        table: LogTable,
        changes: LogChanges,
        *,
        refused: Callable[[str, StorageError], None],
        failed: Callable[[LogDirectory, StorageError], None],
    ) -> None:
        self._table = table
        self._changes = changes
        self._refused = refused
        self._failed = failed
        self._under_way = threading.Lock()

    @property
    def is_due(self) -> bool:
        """Whether `write_changed` has something to write. Does not wait for the disk."""
        return bool(self._changes.unsaved) or any(
            directory.owes_settling for directory in self._table.directories.usable()
        )

    def write_changed(self, high_watermarks: HighWatermarks) -> None:
        """Write the high watermarks, recovery points and log start offsets that have changed since
        the last call. Concurrent calls run one after another."""
        with self._under_way:
            changed = take(self._changes.unsaved)
            for directory in self._table.directories.usable():
                write = partial(self._write, directory, high_watermarks, changed)
                if not self.attempt(directory, write):
                    self._changes.unsaved.update(changed)

    def write_directory(self, directory: LogDirectory, high_watermarks: HighWatermarks) -> None:
        """Write the high watermarks, recovery points and log start offsets of all partitions in
        `directory`. Raises StorageError."""
        with self._table.lock:
            keys = {*self._table.logs, *directory.high_watermarks.offsets}
            self._write(directory, high_watermarks, keys)

    def write_recovery_points(self, keys: Collection[TopicPartition]) -> None:
        """Write the recovery points of these partitions to the checkpoint files."""
        for directory in self._table.directories.usable():
            self.attempt(directory, partial(self._write_recovery_points, directory, keys))

    def cleaned_to(self, partition: TopicPartition) -> int | None:
        """Return the checkpointed offset below which the partition's log is compacted; None if it
        was never compacted."""
        home = self._table.home.get(partition)
        return None if home is None else home.cleaner_offsets.offsets.get(partition)

    def write_cleaned_to(self, log: Log, generation: int, offset: int) -> bool:
        """Checkpoint that the log is compacted below `offset`. Write nothing if `log` was replaced,
        or if it was truncated since the caller read `generation` from `log.segments.generation`.
        Return False only if the write failed."""
        partition = log.topic_partition
        with self._table.lock:
            home = self._table.home.get(partition)
            is_same = self._table.logs.get(partition) is log
            if home is not None and is_same and log.segments.generation == generation:
                wanted = {partition: offset}
                write = partial(home.cleaner_offsets.update, [partition], wanted)
                return self.attempt(home, write)
        return True

    def attempt(self, directory: LogDirectory, write: Callable[[], None]) -> bool:
        """Call `write`, which writes checkpoints of this directory. Return whether the write
        succeeded. Report a full disk to the callback `refused`, and any other failure to the
        callback `failed`."""
        try:
            write()
        except DiskFull as error:
            self._refused("checkpoint", error)
        except StorageError as error:
            self._failed(directory, error)
        else:
            return True
        return False

    def _write(
        self,
        directory: LogDirectory,
        high_watermarks: HighWatermarks,
        keys: Collection[TopicPartition],
    ) -> None:
        with self._table.lock:
            directory.settle_due()
            logs = self._table.within(directory, keys)
            known = directory.high_watermarks.offsets
            marks = checkpointed.high_watermarks(logs, known, high_watermarks)
            directory.high_watermarks.update(keys, directory.missing | marks)
            starts = checkpointed.log_starts(logs)
            chores.persist_epochs(logs, starts, directory.log_starts.offsets)
            directory.log_starts.update(keys, starts)
            self._write_recovery_points(directory, keys)

    def _write_recovery_points(
        self, directory: LogDirectory, keys: Collection[TopicPartition]
    ) -> None:
        with self._table.lock:
            known = directory.recovery_points.offsets
            points = checkpointed.recovery_points(self._table.within(directory, keys), known)
            directory.recovery_points.update(keys, points)
