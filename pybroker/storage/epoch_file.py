"""The leader epochs of one log, and the file that stores them, `leader-epoch-checkpoint`."""

from __future__ import annotations

import contextlib
import threading

from pybroker.model import NO_EPOCH
from pybroker.ports import Disk
from pybroker.storage.checkpoints import encode_epochs
from pybroker.storage.epochs import EpochHistory
from pybroker.storage.filename import LEADER_EPOCHS


class EpochFile:
    """The leader epochs of one log. Changes stay in memory until `persist` writes them to the file.
    Any thread may call `persist`."""

    __slots__ = (
        "_begins_only",
        "_changes",
        "_directory",
        "_disk",
        "_durable_changes",
        "_is_released",
        "_lock",
        "_path",
        "_precedes",
        "history",
        "last_recorded",
    )

    def __init__(self, directory: str, disk: Disk, history: EpochHistory, changed: bool) -> None:
        self._directory = directory
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self._disk = disk
        self._lock = threading.Lock()
        self.history = history
        # The number of changes to the history, and how many of them are durable. A flag would not
        # suffice: changes can follow while a thread writes the file.
        self._changes = 1 if changed else 0
        self._durable_changes = 0
        self._begins_only = False
        self._is_released = False
        self._precedes: str | None = None
        self.last_recorded = NO_EPOCH
        """The leader epoch in the last call of `record`. A repeated call with this epoch changes
        nothing."""

    @property
    def changed(self) -> bool:
        """Whether `persist` must be called before the next batch is written."""
        return self._precedes is not None or self._changes != self._durable_changes

    @property
    def is_owed(self) -> bool:
        """Whether `persist` must be called before the log is closed. False if only epochs without
        records have changed since the last `persist`."""
        return self.changed and not (self._begins_only and self._precedes is None)

    def comes_after(self, path: str) -> None:
        """Let the next `persist` sync the file at `path` before it writes the epoch file. Both
        files are in the same directory."""
        self._precedes = path

    def record(self, epoch: int, start_offset: int) -> None:
        """Record that the log is about to write a batch of the leader epoch `epoch` at
        `start_offset`."""
        if epoch > self.history.latest_epoch:
            self.assign(epoch, start_offset)
        self.last_recorded = epoch

    def remove_unwritten(self, log_end_offset: int) -> None:
        """After a failed write, remove the leader epochs of the unwritten batches: those that begin
        above the log end offset."""
        self.truncate_end(log_end_offset + 1)

    def begin(self, epoch: int, start_offset: int, log_end_offset: int) -> None:
        """Let the leader epoch `epoch` begin at `start_offset`. `log_end_offset` is the present log
        end offset."""
        before = self.history.entries
        if epoch >= 0 and self.history.assign(epoch, start_offset):
            recorded = tuple(each for each in before if each.start_offset < log_end_offset)
            has_no_record = start_offset == log_end_offset
            self._note_change(begins_only=has_no_record and self.history.entries[:-1] == recorded)

    def assign(self, epoch: int, start_offset: int) -> None:
        if epoch >= 0 and self.history.assign(epoch, start_offset):
            self._note_change()

    def remove_unrecorded(self, log_end_offset: int) -> None:
        """Remove the epochs without records: those that begin at or above the log end offset."""
        self.last_recorded = NO_EPOCH
        if self.history.truncate_end(log_end_offset):
            self._note_change(begins_only=True)

    def truncate_end(self, end_offset: int) -> None:
        self.last_recorded = NO_EPOCH
        if self.history.truncate_end(end_offset):
            self._note_change()

    def truncate_start(self, start_offset: int) -> None:
        if self.history.truncate_start(start_offset):
            self._note_change()

    def clear(self) -> None:
        self.history = EpochHistory()
        self.last_recorded = NO_EPOCH
        self._note_change()

    def _note_change(self, *, begins_only: bool = False) -> None:
        """Count a change of the epochs that is not in the file yet. `begins_only`: whether the log
        has no records of the epochs that the change adds or removes."""
        was_durable = self._changes == self._durable_changes
        self._begins_only = begins_only and (was_durable or self._begins_only)
        self._changes += 1

    def release(self) -> None:
        """Disable `persist`. After the return no thread writes the file, so the log's directory may
        be renamed."""
        with self._lock:
            self._is_released = True

    def persist(self) -> None:
        """Make all changes so far durable in the file. Waits for the disk. Raises StorageError."""
        with self._lock:
            if not self.changed or self._is_released:
                return
            # Read before the entries are encoded: a later change is left to the next call.
            changes = self._changes
            if self._precedes is not None:
                with contextlib.closing(self._disk.open(self._precedes)) as file:
                    file.sync()
                self._disk.sync_dir(self._directory)
            if changes != self._durable_changes:
                self._disk.replace(self._path, encode_epochs(self.history.entries))
                self._durable_changes = changes
            self._precedes = None
