"""Incomplete logs: the broker copies them anew from the leader, because the earlier log is lost.

Until the copy has all records that the leader had when the copying began, it may lack records that
this replica has acknowledged. So an incomplete replica follows and does not lead. A mark in its
directory records this, since the broker may stop before the copy is complete. If the partition is
orphaned, the mark is removed: each replica reports its log end, and the longest log leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Disk
from pybroker.storage.filename import INCOMPLETE
from pybroker.storage.log import Log

_CONTENT: Final = b"this replica is being copied from its leader; it may not lead before\n"


class Incomplete:
    """The incomplete logs of one broker. Thread-safe: each step is one operation on a set or
    dictionary."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[TopicPartition, str] = {}
        self.replaceable: set[TopicPartition] = set()
        """Partitions whose damaged log is neither in sync nor eligible: if another broker leads, a
        copy may replace the log."""
        self.released: set[TopicPartition] = set()
        """Incomplete replicas that may lead, since no live replica has more records."""

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._paths

    @property
    def partitions(self) -> list[TopicPartition]:
        """A snapshot of the incomplete partitions."""
        return list(self._paths)

    @property
    def waiting(self) -> list[TopicPartition]:
        """A snapshot of the partitions that may not lead."""
        return [key for key in list(self._paths) if key not in self.released]

    def require_complete(self, partition: TopicPartition, is_copied: bool) -> None:
        """Raise BrokerError KAFKA_STORAGE_ERROR if the log is incomplete and no other broker leads
        (not `is_copied`)."""
        if partition in self and not is_copied:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the copy of {partition} that was begun anew is not complete: it may lack records"
                " that this broker has acknowledged. Copying continues once another broker leads:"
                " start the brokers that were in sync, or elect another replica uncleanly",
            )

    def load(self, logs: Iterable[Log]) -> None:
        """Find the marks of incomplete logs on the disk. Raises StorageError."""
        for log in logs:
            path = f"{log.directory}/{INCOMPLETE}"
            if self._disk.exists(path):
                self._paths[log.topic_partition] = path

    def mark(self, partition: TopicPartition, directory: str) -> None:
        """Create `directory` and mark its log as incomplete, before the log is created. Waits for
        the disk. Raises StorageError."""
        self._disk.make_dirs(directory)
        path = f"{directory}/{INCOMPLETE}"
        self._disk.replace(path, _CONTENT)
        self._paths[partition] = path

    def clear(self, partition: TopicPartition) -> None:
        """Remove the mark of the partition, because its log is complete, released or removed. Waits
        for the disk. Raises StorageError."""
        self.released.discard(partition)
        path = self._paths.pop(partition, None)
        if path is not None:
            self._disk.unlink(path)
