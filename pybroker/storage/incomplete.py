"""Which logs are copies that begin anew, because what was there is gone.

Until such a log has all that its leader had when the copying began, it may lack records that this
replica had acknowledged: it follows, but is never led from. A file in its directory says so, since
the broker may end before the copy is complete. It counts as any other log once nobody is known to
have all: then each says what it has.
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
    """Used from several threads; each step is one of a set."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[TopicPartition, str] = {}
        self.replaceable: set[TopicPartition] = set()
        """Partitions whose log has a hole, and that nobody counts on any more: where another broker
        leads, a copy may take the log's place."""
        self.released: set[TopicPartition] = set()
        """Copies than which nobody who is there has more: they may lead as they are."""

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._paths

    @property
    def partitions(self) -> list[TopicPartition]:
        """A snapshot."""
        return list(self._paths)

    @property
    def waiting(self) -> list[TopicPartition]:
        """Those that may not lead; a snapshot."""
        return [key for key in list(self._paths) if key not in self.released]

    def require_complete(self, partition: TopicPartition, is_copied: bool) -> None:
        """Raises BrokerError KAFKA_STORAGE_ERROR if the log is incomplete and nobody is there to
        copy from."""
        if partition in self and not is_copied:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the copy of {partition} that was begun anew is not complete: it may lack records"
                " that this broker had acknowledged. It is copied on when another leads: bring back"
                " the brokers that were in sync, or elect another replica uncleanly",
            )

    def load(self, logs: Iterable[Log]) -> None:
        """Find those of earlier brokers. Raises StorageError."""
        for log in logs:
            path = f"{log.directory}/{INCOMPLETE}"
            if self._disk.exists(path):
                self._paths[log.topic_partition] = path

    def mark(self, partition: TopicPartition, directory: str) -> None:
        """The log is about to begin anew in that directory, which is made. Waits for the disk.
        Raises StorageError."""
        self._disk.make_dirs(directory)
        path = f"{directory}/{INCOMPLETE}"
        self._disk.replace(path, _CONTENT)
        self._paths[partition] = path

    def clear(self, partition: TopicPartition) -> None:
        """The log has all that its leader had, or is gone. Waits for the disk. Raises
        StorageError."""
        self.released.discard(partition)
        path = self._paths.pop(partition, None)
        if path is not None:
            self._disk.unlink(path)
