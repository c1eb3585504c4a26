"""The table of a broker's logs and their log directories."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterable

from pybroker.model import TopicPartition
from pybroker.ports import Disk, Rng
from pybroker.storage.deletions import PendingDeletions
from pybroker.storage.directory import LogDirectory
from pybroker.storage.directory_set import DirectorySet
from pybroker.storage.filename import marked_directory, partition_directory
from pybroker.storage.log import Log


class LogTable:
    """The logs of a broker, and the log directory (`home`) of each log.

    Invariant: `logs` and `home` have the same partitions. Hold `lock` to change `logs`, `home` or
    the checkpoints. Never take `lock` while holding a log's own lock.
    """

    def __init__(self, directories: DirectorySet, disk: Disk, rng: Rng) -> None:
        self.directories = directories
        self.disk = disk
        self.rng = rng
        self.logs: dict[TopicPartition, Log] = {}
        self.home: dict[TopicPartition, LogDirectory] = {}
        self.deleted = PendingDeletions(disk.remove_tree)
        self.lock = threading.RLock()

    def within(
        self, directory: LogDirectory, keys: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Log]:
        """Return partition -> log for the logs in this log directory. If `keys` is not None, return
        only the logs of these partitions."""
        with self.lock:
            return {
                key: self.logs[key]
                for key in (self.logs if keys is None else keys)
                if self.home.get(key) is directory
            }

    def choose(
        self, partition: TopicPartition, requested: LogDirectory | None
    ) -> LogDirectory | None:
        """Return the log directory for a new log: the directory that has files of the partition,
        else `requested`, else the directory with the fewest partitions. Return None if all
        directories have failed."""
        usable = self.directories.usable()
        for each in usable:
            if self.disk.exists(f"{each.path}/{partition_directory(partition)}"):
                return each
        if requested is not None and requested.failure is None:
            return requested
        counts = Counter(home.path for home in self.home.values())
        return min(usable, key=lambda each: counts[each.path], default=None)

    def unique(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.rng.randbytes(16))

    def rename_away(self, log: Log, directory: LogDirectory, purpose: str) -> str:
        """Rename the directory of a log that is no longer used; `purpose` is a suffix such as
        DELETED_DIRECTORY. Return the new path. Raises StorageError."""
        name = marked_directory(log.topic_partition, self.unique(), purpose)
        path = f"{directory.path}/{name}"
        self.disk.rename(log.directory, path)
        self.disk.sync_dir(directory.path)
        return path
