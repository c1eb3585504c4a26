"""How much of a log has been made durable, when more is due, and making it so."""

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
    """Invariant: what lies below `recovery_point` is on the disk.

    A sync runs in another thread while the log may be shortened, so a sync that began before the
    last shortening does not count. One sync at a time, by whoever holds `syncing`: of two at once
    the system tells only one that the disk has failed.
    """

    __slots__ = (
        "_limit",
        "_lock",
        "_settled_end",
        "_shortened",
        "_tolerated_end",
        "last_flush_ms",
        "recovery_point",
        "syncing",
    )

    def __init__(self, recovery_point: int, settled_end: int = -1) -> None:
        """`settled_end`: where the log ended when `settle` was last done, -1 for never."""
        self.recovery_point = recovery_point
        self._settled_end = settled_end
        self.syncing = threading.RLock()
        # Where the log ended when fewer records than flush.messages were waiting for a sync.
        self._tolerated_end = recovery_point
        self.last_flush_ms = 0
        self._shortened = 0
        self._limit = sys.maxsize
        self._lock = threading.Lock()

    def is_due(self, end: int, config: LogConfig, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms ask for a flush of a log that ends at `end`."""
        unflushed = end - self.recovery_point
        return unflushed > 0 and (
            unflushed >= config.flush_messages or now_ms - self.last_flush_ms >= config.flush_ms
        )

    def counted_end(self, end: int) -> int:
        """Up to where a log that ends at `end` is as durable as flush.messages asks for."""
        return min(end, max(self.recovery_point, self._tolerated_end))

    def tolerates(self, end: int, config: LogConfig) -> bool:
        """Whether a log that was appended to up to `end` need not be made durable yet."""
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
        """Make durable what is appended so far, or the segments that get no more records; with
        `indexes` also those of the active segment. The caller holds `syncing`. Waits for the disk.
        Raises StorageError."""
        begun = self._shortened
        active = segments.active
        end = active.base_offset if closed_only else active.next_offset
        changed = indexes or segments.directory_changed or epochs.changed
        if end <= self.recovery_point and not changed:
            return
        epochs.persist()
        segments.sync(self.recovery_point, end, indexes=indexes)
        with self._lock:
            if begun == self._shortened:
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
        """Write the indexes, the producer snapshot and the epochs, so that the next start need not
        rebuild them, and make the log durable. All files are written before the first sync, so
        that each is synced once. Otherwise as `flush`."""
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
        """While the log is about to be cut at `end`: a sync meanwhile counts up to there only, or
        a checkpoint that is taken before the cut is over would tell of what is gone."""
        self._settled_end = -1
        with self._lock:
            self._limit = end
            self.recovery_point = min(self.recovery_point, end)
        try:
            yield
        finally:
            self._limit = sys.maxsize

    def shorten(self, end: int) -> None:
        """The log now ends at `end`."""
        with self._lock:
            self._shortened += 1
            self.recovery_point = min(self.recovery_point, end)
            self._tolerated_end = min(self._tolerated_end, end)

    def restart(self, offset: int) -> None:
        """The log is empty and begins at `offset`."""
        with self._lock:
            self._shortened += 1
            self.recovery_point = self._tolerated_end = offset
