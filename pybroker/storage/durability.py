"""The flushes of a log: its recovery point, when a flush is due, and the flush itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pybroker.storage.epoch_file import EpochFile
from pybroker.storage.log_config import LogConfig
from pybroker.storage.producer_state import ProducerState
from pybroker.storage.segments import Segments
from pybroker.storage.snapshot_files import SnapshotFiles


class Durability:
    """The flushes of one log. Invariant: records below `recovery_point` are durable.

    A sync must hold `syncing`: the kernel reports a disk failure to only one of two concurrent
    syncs.
    """

    __slots__ = (
        "_limit",
        "_lock",
        "_settled_end",
        "_tolerated_end",
        "_truncations",
        "last_flush_ms",
        "recovery_point",
        "syncing",
    )

    def __init__(self, recovery_point: int, settled_end: int = -1) -> None:
        """`settled_end` is the log end offset if the log was closed cleanly and has not changed
        since; otherwise -1."""
        self.recovery_point = recovery_point
        self._settled_end = settled_end
        self.syncing = threading.RLock()
        # The last log end at which fewer than flush.messages records waited for a sync.
        self._tolerated_end = recovery_point
        self.last_flush_ms = 0
        self._truncations = 0
        self._limit = sys.maxsize
        self._lock = threading.Lock()

    def is_due(self, end: int, config: LogConfig, now_ms: int) -> bool:
        """Return whether flush.messages or flush.ms require a flush at the wall-clock time
        `now_ms`. `end` is the log end offset."""
        unflushed = end - self.recovery_point
        return unflushed > 0 and (
            unflushed >= config.flush_messages or now_ms - self.last_flush_ms >= config.flush_ms
        )

    def counted_end(self, end: int) -> int:
        """Return the end offset of the records that count as durable: the synced records, and those
        that flush.messages allows to stay unsynced. `end` is the log end offset."""
        return min(end, max(self.recovery_point, self._tolerated_end))

    def tolerates(self, end: int, config: LogConfig) -> bool:
        """Return whether fewer than flush.messages records below the log end offset `end` are
        unsynced. If so, also let all records below `end` count as durable (see `counted_end`),
        because flush.messages allows unsynced records."""
        if end - self.recovery_point >= config.flush_messages:
            return False
        self._tolerated_end = end
        return True

    def flush(
        self,
        segments: Segments,
        epochs: EpochFile,
        closed_only: bool = False,
        now_ms: int | None = None,
        *,
        indexes: bool = False,
    ) -> None:
        """Make all appended records durable, or only those in closed segments if `closed_only`.
        `indexes`: also sync the active segment's indexes. The caller must hold the lock `syncing`.
        Waits for the disk. Raises StorageError."""
        begun = self._truncations
        active = segments.active
        end = active.base_offset if closed_only else active.next_offset
        changed = indexes or segments.directory_changed or epochs.is_owed
        if end <= self.recovery_point and not changed:
            return
        if epochs.is_owed:
            epochs.persist()
        segments.sync(self.recovery_point, end, indexes=indexes)
        with self._lock:
            if begun == self._truncations:
                self.recovery_point = max(self.recovery_point, min(end, self._limit))
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def settle(
        self,
        segments: Segments,
        epochs: EpochFile,
        snapshots: SnapshotFiles,
        producers: ProducerState,
    ) -> None:
        """Write the indexes, producer snapshot and leader epochs, and make the log durable. The
        caller must hold the lock `syncing`. Waits for the disk. Raises StorageError."""
        end = segments.active.next_offset
        changed = end != self._settled_end
        if changed:
            segments.seal_active()
            snapshots.write(end, producers)
            snapshots.keep(segments.bases, end)
        self.flush(segments, epochs, indexes=changed)
        self._settled_end = end

    @contextmanager
    def at_most(self, end: int) -> Iterator[None]:
        """Keep the recovery point at or below `end` while the caller truncates the log to `end`."""
        self._settled_end = -1
        with self._lock:
            self._limit = end
            self.recovery_point = min(self.recovery_point, end)
        try:
            yield
        finally:
            self._limit = sys.maxsize

    def truncated(self, end: int) -> None:
        """Record that the log was truncated to the end offset `end`."""
        with self._lock:
            self._truncations += 1
            self.recovery_point = min(self.recovery_point, end)
            self._tolerated_end = min(self._tolerated_end, end)

    def restart(self, offset: int) -> None:
        """Record that the log was emptied, and that its next record gets `offset`."""
        with self._lock:
            self._truncations += 1
            self.recovery_point = self._tolerated_end = offset
