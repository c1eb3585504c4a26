"""How much of a log is durable, when a flush is due, and the flush."""

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
    """Invariant: records below `recovery_point` are on the disk.

    A sync runs in another thread while the log may be truncated, so a sync that began before the
    last truncation does not count. The holder of `syncing` syncs alone: of two syncs at once the
    kernel reports a disk failure to only one.
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
        """`settled_end` is the log end at the last `settle`, -1 for never."""
        self.recovery_point = recovery_point
        self._settled_end = settled_end
        self.syncing = threading.RLock()
        # The log end when fewer records than flush.messages were waiting for a sync.
        self._tolerated_end = recovery_point
        self.last_flush_ms = 0
        self._shortened = 0
        self._limit = sys.maxsize
        self._lock = threading.Lock()

    def is_due(self, end: int, config: LogConfig, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms demand a flush of a log that ends at `end`."""
        unflushed = end - self.recovery_point
        return unflushed > 0 and (
            unflushed >= config.flush_messages or now_ms - self.last_flush_ms >= config.flush_ms
        )

    def counted_end(self, end: int) -> int:
        """Return the offset below which a log that ends at `end` is as durable as flush.messages
        demands."""
        return min(end, max(self.recovery_point, self._tolerated_end))

    def tolerates(self, end: int, config: LogConfig) -> bool:
        """Whether a log that was appended to up to `end` need not be flushed yet."""
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
        """Make all appended records durable, or only those of closed segments; with `indexes` also
        the indexes of the active segment. The caller holds `syncing`. Waits for the disk. Raises
        StorageError."""
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
        rebuild them, and make the log durable. All files are written before the first sync, so that
        each is synced once. The caller holds `syncing`. Waits for the disk. Raises StorageError."""
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
        """Limit a concurrent sync to `end` while the log is about to be truncated there. Otherwise
        a checkpoint taken before the truncation is over would count records that are gone."""
        self._settled_end = -1
        with self._lock:
            self._limit = end
            self.recovery_point = min(self.recovery_point, end)
        try:
            yield
        finally:
            self._limit = sys.maxsize

    def shorten(self, end: int) -> None:
        """Note that the log now ends at `end`."""
        with self._lock:
            self._shortened += 1
            self.recovery_point = min(self.recovery_point, end)
            self._tolerated_end = min(self._tolerated_end, end)

    def restart(self, offset: int) -> None:
        """Note that the log is empty and begins at `offset`."""
        with self._lock:
            self._shortened += 1
            self.recovery_point = self._tolerated_end = offset
