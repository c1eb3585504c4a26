"""Logs that are copied anew from the leader, because the earlier log is gone.

Until such a log has all records that its leader had when the copying began, it may lack records
that this replica had acknowledged: it follows, but never leads. A file in its directory says so,
since the broker may end before the copy is complete. Once no live replica is known to have all
records, the log counts like any other, and each replica reports its log end.
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
    """Used from several threads; each step is one operation on a set."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[TopicPartition, str] = {}
        self.replaceable: set[TopicPartition] = set()
        """Partitions whose log is damaged and on which no broker counts any more: if another broker
        leads, a copy may replace the log."""
        self.released: set[TopicPartition] = set()
        """Incomplete copies that no live replica can extend. They may lead."""

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
        """Raises BrokerError KAFKA_STORAGE_ERROR if the log is incomplete and there is no leader to
        copy from."""
        if partition in self and not is_copied:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the copy of {partition} that was begun anew is not complete: it may lack records"
                " that this broker had acknowledged. Copying continues when another broker leads:"
                " bring back the brokers that were in sync, or elect another replica uncleanly",
            )

    def load(self, logs: Iterable[Log]) -> None:
        """Find the incomplete logs of earlier runs. Raises StorageError."""
        for log in logs:
            path = f"{log.directory}/{INCOMPLETE}"
            if self._disk.exists(path):
                self._paths[log.topic_partition] = path

    def mark(self, partition: TopicPartition, directory: str) -> None:
        """Mark the log in `directory`, which is created, as incomplete before it begins anew. Waits
        for the disk. Raises StorageError."""
        self._disk.make_dirs(directory)
        path = f"{directory}/{INCOMPLETE}"
        self._disk.replace(path, _CONTENT)
        self._paths[partition] = path

    def clear(self, partition: TopicPartition) -> None:
        """Remove the mark: the log has all records of its leader, or is gone. Waits for the disk.
        Raises StorageError."""
        self.released.discard(partition)
        path = self._paths.pop(partition, None)
        if path is not None:
            self._disk.unlink(path)
