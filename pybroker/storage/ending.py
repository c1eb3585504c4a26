"""Syncs and closes the logs when a broker stops. Several threads can close logs at the same
time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pybroker.errors import BrokerError, DiskFull, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Disk
from pybroker.storage.directory import LogDirectory
from pybroker.storage.log import Log
from pybroker.storage.log_table import LogTable

log = logging.getLogger(__name__)
SHARES_MAX: Final = 4
"""The number of logs of one log directory that are closed at the same time. It equals the number of
concurrent syncs while the broker runs: the file system's journal combines them into one commit."""


class Ending:
    """Closes the logs of `table` after their last append. Calls `failed`, in any thread, for a log
    directory whose disk fails."""

    def __init__(
        self, table: LogTable, disk: Disk, failed: Callable[[LogDirectory, StorageError], None]
    ) -> None:
        self._table = table
        self._disk = disk
        self._failed = failed
        self.ended: set[TopicPartition] = set()
        """The partitions whose logs were closed undamaged and durable."""
        self._closed: set[TopicPartition] = set()

    def shares(self) -> list[Sequence[Log]]:
        """Split all logs into groups. Several threads may call `end` at the same time, each with a
        different group. Also sync the log directories that have new logs, because a power loss
        could otherwise remove these logs. Waits for the disk."""
        found: list[Sequence[Log]] = []
        for directory in self._table.directories.usable():
            logs = [*self._table.within(directory).values()]
            self._sync_names(directory, logs)
            found += (logs[first::SHARES_MAX] for first in range(min(SHARES_MAX, len(logs))))
        return found

    def end(self, logs: Iterable[Log]) -> None:
        """Make these logs durable and close them. Waits for the disk."""
        for log in logs:
            self._closed.add(log.topic_partition)
            try:
                if _end(log):
                    self.ended.add(log.topic_partition)
            except StorageError as error:
                self._failed(self._table.home[log.topic_partition], error)

    def end_rest(self) -> None:
        """Close all logs that were not given to `end`, for example logs that were opened after the
        call of `shares`. Waits for the disk."""
        self.end([log for key, log in self._table.logs.items() if key not in self._closed])

    def _sync_names(self, directory: LogDirectory, logs: Sequence[Log]) -> None:
        new = [log for log in logs if log.segments.parent_changed]
        if not new:
            return
        try:
            self._disk.sync_dir(directory.path)
        except DiskFull:
            return  # the flush of each log tries again, and reports the error
        except StorageError as error:
            self._failed(directory, error)
            return
        for log in new:
            log.segments.parent_changed = False


def _end(partition_log: Log) -> bool:
    """Make a log durable and close it. Return False if the next start must recover the log, because
    the log is damaged or the disk was full. Raises StorageError."""
    try:
        partition_log.close()
    except (BrokerError, StorageError) as error:
        if isinstance(error, DiskFull) or isinstance(error.__cause__, DiskFull):
            log.warning(
                "disk full, log is recovered at the next start partition=%s error=%s",
                partition_log.topic_partition,
                error,
            )
            return False
        raise StorageError(str(error)) from error
    return partition_log.damage is None
