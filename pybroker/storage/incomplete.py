"""Incomplete logs: the earlier log is lost, and the broker copies a new one from the leader.

The replica may have acknowledged records that the new log still lacks. The copy is complete once it
has all records that the leader had when the copying began. Until then the replica follows and does
not lead. A mark in its directory records this, since the broker may stop before the copy is
complete. If the partition is orphaned, the mark is removed: each replica reports its log end, and
the controller elects one with the longest log.
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
    """The incomplete logs of one broker. Thread-safe: each step is one operation on a set or a
    dictionary."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[TopicPartition, str] = {}
        self.replaceable: set[TopicPartition] = set()
        """The partitions whose damaged log is on a replica that is neither in sync nor eligible. If
        another broker leads, a new copy may replace the damaged log."""
        self.released: set[TopicPartition] = set()
        """The incomplete replicas that may lead, because no live replica has more records."""

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._paths

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of all incomplete logs, as a copy."""
        return list(self._paths)

    @property
    def waiting(self) -> list[TopicPartition]:
        """The partitions whose incomplete replica may not lead, as a copy."""
        return [key for key in list(self._paths) if key not in self.released]

    def require_complete(self, partition: TopicPartition, is_copied: bool) -> None:
        """Raise BrokerError KAFKA_STORAGE_ERROR if the partition's log is incomplete, unless
        another broker leads, so that this broker copies the log from it (`is_copied`)."""
        if partition in self and not is_copied:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log of {partition} was lost, and its new copy is not complete: it may lack"
                " records that this broker has acknowledged. Copying continues once another broker"
                " leads: start the brokers that were in sync, or elect another replica uncleanly",
            )

    def load(self, logs: Iterable[Log]) -> None:
        """Find the logs among `logs` that have the mark of an incomplete log on the disk. Raises
        StorageError."""
        for log in logs:
            path = f"{log.directory}/{INCOMPLETE}"
            if self._disk.exists(path):
                self._paths[log.topic_partition] = path

    def mark(self, partition: TopicPartition, directory: str) -> None:
        """Create `directory`, and mark in it that the partition's log is incomplete, before the log
        is created there. Waits for the disk. Raises StorageError."""
        self._disk.make_dirs(directory)
        path = f"{directory}/{INCOMPLETE}"
        self._disk.replace(path, _CONTENT)
        self._paths[partition] = path

    def clear(self, partition: TopicPartition) -> None:
        """Remove the partition's mark from the disk, because its log is complete, may lead anyway,
        or is removed. Waits for the disk. Raises StorageError."""
        self.released.discard(partition)
        path = self._paths.pop(partition, None)
        if path is not None:
            self._disk.unlink(path)
