"""The move of a replica between log directories (KIP-113), while the broker serves the replica.

The log is copied into a directory `*-future`. This directory is renamed to `<topic>-<partition>`
shortly before the copy replaces the original. Until the original is renamed for deletion, both
directories have this name. During this time, each truncation of the log in use first marks the
other log as outdated. If the broker is killed during this time, the next start uses the longer log,
unless that log is marked as outdated.
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Final

from pybroker.errors import (
    BrokerError,
    CorruptionError,
    DiskFull,
    ErrorCode,
    PybrokerError,
    StorageError,
)
from pybroker.ports import Clock, Disk
from pybroker.records.batch import HEADER_SIZE, read_header
from pybroker.storage import meta
from pybroker.storage.directory import LogDirectory
from pybroker.storage.filename import (
    FUTURE_DIRECTORY,
    INCOMPLETE,
    LEADER_EPOCHS,
    MOVED_HERE,
    MOVING_AWAY,
    OUTDATED,
    PARTITION_METADATA,
    marked_directory,
    partition_directory,
)
from pybroker.storage.loader import Known, create_log, open_log
from pybroker.storage.log import Log
from pybroker.storage.log_parts import LogOwner

log = logging.getLogger(__name__)
SLICE_BYTES: Final = 1024**2
"""The number of bytes that one call of `copy` copies. Other moves, and a cancellation of this one,
wait for the end of the call."""


class MoveCancelled(PybrokerError):
    """Raised by a step of a move that has been cancelled."""


class ReplicaMove:
    """One move of a replica. Its steps: `prepare`, `copy` until almost complete, `rename`, `copy`,
    and `catch_up`, the only step that does not wait for the disk.

    Invariant: the copy's batches are a prefix of the original's. After a call of `lower`, the
    invariant may be broken until the next step has ended.
    """

    def __init__(
        self, source: Log, target: LogDirectory, disk: Disk, owner: LogOwner, clock: Clock
    ) -> None:
        self.source = source
        self.target = target
        self.topic_partition = source.topic_partition
        self._disk = disk
        self._owner = owner
        self._clock = clock
        self._log: Log | None = None
        self._lowered: int | None = None
        self._named: str | None = None
        """The final directory of the copy, once `rename` has given it this name."""
        self._marks = threading.Lock()
        """Guards `_lowered`, `_named`, and the file `pybroker.outdated` in the directory of the log
        that is not in use. Held only briefly, because a thread may wait for it while it holds the
        lock of `LogTable`."""
        self._cancelled = False
        self.done = False
        """Whether the copy has replaced the original log."""
        self._lock = threading.Lock()

    @property
    def log(self) -> Log:
        """The copy of the log; it exists after `prepare`."""
        assert self._log is not None
        return self._log

    @property
    def copied(self) -> tuple[int, int]:
        """The size in bytes and the log end offset of the copy. Before `prepare`: 0, and the log
        start offset of the original."""
        log = self._log
        return (
            (0, self.source.log_start_offset)
            if log is None
            else (
                log.size_bytes,
                log.log_end_offset,
            )
        )

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """Make each further step fail with MoveCancelled. A running step ends normally."""
        self._cancelled = True

    def abandon(self) -> str | None:
        """Cancel the move, wait for a running step, and close the copy. Return the directory of the
        copy; None if the move has no copy."""
        self._cancelled = True
        with self._lock:
            self.stay()
            if self._log is None:
                return None
            self._log.release()
            return self._log.directory

    def lower(self, offset: int) -> None:
        """Prepare the move for a truncation: the log in use will be truncated to `offset`. If the
        copy is unfinished, the next step of the move truncates the copy too. If the broker's next
        start could choose the other log (the copy, or after the move the original), mark the other
        log as outdated.

        Call this before the truncation, while holding the lock of `LogTable`. Waits for the disk.
        Raises BrokerError KAFKA_STORAGE_ERROR: the caller must not truncate then.
        """
        try:
            with self._marks:
                if self.done:
                    if self._disk.exists(self.source.directory):
                        self._outdate(self.source.directory)
                    return
                lowered = self._lowered
                self._lowered = offset if lowered is None else min(lowered, offset)
                if self._named is not None:
                    self._outdate(self._named)
        except DiskFull as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except StorageError as error:
            # Only the log of the failed disk fails: the log to truncate may be on another disk.
            raise (self.source if self.done else self.log).fail(error) from error

    def _outdate(self, directory: str) -> None:
        """Mark the log in `directory` as outdated, so that the next start never uses it."""
        self._disk.replace(f"{directory}/{OUTDATED}", b"")

    def prepare(self, unique: uuid.UUID) -> None:
        """Create the copy and its directory, whose name contains `unique`. Raises StorageError,
        BrokerError."""
        with self._lock:
            partition, source = self.topic_partition, self.source
            name = marked_directory(partition, unique, FUTURE_DIRECTORY)
            directory = f"{self.target.path}/{name}"
            self._log = create_log(
                partition,
                directory,
                source.config,
                self._disk,
                self._owner,
                first_offset=self._first_offset(),
                log_start_offset=source.log_start_offset,
            )
            self._log.topic_id = source.topic_id
            self._disk.replace(f"{directory}/{MOVED_HERE}", _naming(_parent(source.directory)))
            if source.topic_id is not None:
                content = meta.encode_partition_metadata(source.topic_id)
                self._disk.replace(f"{directory}/{PARTITION_METADATA}", content)

    def _first_offset(self) -> int:
        """Return the base offset of the batch that contains the log start offset of the
        original."""
        source = self.source
        start, end = source.log_start_offset, source.log_end_offset
        data = source.read(
            start, HEADER_SIZE, upper_offset=end, at_least_one_batch=True, cached_only=False
        )
        return read_header(data).base_offset if data else start

    def copy(self) -> bool:
        """Copy up to `SLICE_BYTES` of batches. Return whether the copy has reached the log end
        offset that the source log had when this call began. Raises MoveCancelled, BrokerError,
        StorageError."""
        with self._lock:
            self._require_wanted()
            self._shorten()
            end = self.source.log_end_offset
            try:
                start = self._first_offset()
                if self.log.log_end_offset < start:
                    # Retention has deleted the next records to copy.
                    self.log.truncate_fully_and_start_at(start)
                self._copy(cached_only=False)
            except BrokerError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
            return self.log.log_end_offset >= end

    def _shorten(self) -> None:
        with self._marks:
            offset, self._lowered = self._lowered, None
        if offset is None:
            return
        start = self._first_offset()
        if start > offset or start >= self.log.log_end_offset:
            self.log.truncate_fully_and_start_at(start)
        else:
            self.log.truncate_to(offset)
        with self._marks:
            if self._lowered is None and self._named is not None:
                self._disk.unlink(f"{self._named}/{OUTDATED}")
                self._disk.sync_dir(self._named)

    def _copy(self, *, cached_only: bool) -> None:
        """Copy up to `SLICE_BYTES` of batches, without the checks of `copy`. With `cached_only`,
        copy nothing if the read would wait for the disk."""
        source, log = self.source, self.log
        data = source.read(
            max(log.log_end_offset, source.log_start_offset),
            SLICE_BYTES,
            upper_offset=source.log_end_offset,
            at_least_one_batch=True,
            cached_only=cached_only,
        )
        if data:
            log.append_replicated(data, now_ms=self._clock.wall_ms())

    def rename(self) -> None:
        """Make the copy durable, and give its directory the final name. Raises the errors of
        `copy`."""
        with self._lock:
            self._require_wanted()
            log, source = self.log, self.source
            log.flush()
            log.close()
            self._copy_epochs(log)
            mark = f"{source.directory}/{INCOMPLETE}"
            if self._disk.exists(mark):  # else the copy could lead after a restart
                self._disk.replace(f"{log.directory}/{INCOMPLETE}", self._disk.read(mark))
            self._announce()
            final = f"{self.target.path}/{partition_directory(self.topic_partition)}"
            with self._marks:
                if self._lowered is not None:
                    self._outdate(log.directory)
                self._disk.rename(log.directory, final)
                self._named = log.directory = final
            self._disk.sync_dir(self.target.path)
            known = Known(
                clean=True,
                recovery_point=log.recovery_point,
                log_start_offset=source.log_start_offset,
            )
            self._log = open_log(
                self.topic_partition,
                final,
                source.config,
                self._disk,
                self._owner,
                known,
                now_ms=self._clock.wall_ms(),
            ).log
            if self._log.damage is not None:
                raise self._log.damage.as_error(self.topic_partition)

    def _announce(self) -> None:
        """Write the file `pybroker.moving`, with the path of the copy's log directory, into the
        original's directory."""
        try:
            path = f"{self.source.directory}/{MOVING_AWAY}"
            self._disk.replace(path, _naming(self.target.path))
        except DiskFull as error:
            # A full disk is a reason for the move, so it must not prevent the move.
            log.warning(
                "disk full, move goes on without the file %s partition=%s error=%s",
                MOVING_AWAY,
                self.topic_partition,
                error,
            )

    def stay(self) -> None:
        """Remove the file `pybroker.moving`, because the original stays in use. Does nothing if the
        copy has replaced the original. Waits for the disk."""
        path = f"{self.source.directory}/{MOVING_AWAY}"
        try:
            if not self.done and self._disk.exists(path):
                self._disk.unlink(path)
                self._disk.sync_dir(self.source.directory)
        except StorageError as error:
            log.warning("file of a cancelled move not removed path=%s error=%s", path, error)

    def _copy_epochs(self, log: Log) -> None:
        self.source.persist_epochs()
        try:
            content = self._disk.read(f"{self.source.directory}/{LEADER_EPOCHS}")
        except FileNotFoundError:
            return
        # If only the original was truncated yet, its file lacks some epochs of the copy's batches.
        if self._lowered is not None or self.source.log_end_offset < log.log_end_offset:
            return
        self._disk.replace(f"{log.directory}/{LEADER_EPOCHS}", content)

    def catch_up(self) -> bool:
        """Copy the remaining bytes, if they are in the page cache. Return whether the copy is
        complete: the caller must then replace the original at once. Call this on the event loop."""
        if self._cancelled or not self._lock.acquire(blocking=False):
            return False
        try:
            source, log = self.source, self.log
            if self._lowered is not None or source.failure is not None:
                return False
            if log.log_end_offset < source.log_start_offset:
                return False
            if log.log_end_offset != source.log_end_offset:
                self._copy(cached_only=True)
            if log.log_end_offset != source.log_end_offset:
                return False
            self._become_the_log()
            return True
        finally:
            self._lock.release()

    def _become_the_log(self) -> None:
        source, log = self.source, self.log
        log.set_config(source.config)
        log.advance_log_start(source.log_start_offset)
        log.producers.take_over(source.producers)
        epoch = source.latest_epoch
        if epoch > log.latest_epoch:
            _, start_offset = source.epoch_end_offset(epoch - 1)
            log.begin_epoch(epoch, start_offset if start_offset >= 0 else log.log_end_offset)
        log.topic_id = source.topic_id
        log.last_append_ms = source.last_append_ms
        self.done = True

    def make_durable(self) -> None:
        """Make the copy durable after it has replaced the original. Raises BrokerError,
        StorageError."""
        self.log.flush()
        self._disk.sync_dir(self.log.directory)
        self._disk.sync_dir(self.target.path)

    def forget_origin(self) -> None:
        """Remove the file that names the original's log directory. The file is in the copy's
        directory."""
        self._disk.unlink(f"{self.log.directory}/{MOVED_HERE}")

    def _require_wanted(self) -> None:
        if self._cancelled:
            raise MoveCancelled(f"the move of {self.topic_partition} was cancelled")
        if self.source.failure is not None:
            raise StorageError(str(self.source.failure))


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0]


def _naming(log_directory: str) -> bytes:
    return f"{log_directory}\n".encode()


def counterpart(log: Log, disk: Disk) -> str | None:
    """If a marker file says that `log` is being moved between log directories, return the other
    log directory of the move: the source if `log` is the copy, otherwise the target. The log there
    may be deleted already. Return None if there is no marker file. Raises StorageError."""
    for name in (MOVED_HERE, MOVING_AWAY):
        try:
            return disk.read(f"{log.directory}/{name}").decode(errors="replace").strip()
        except FileNotFoundError:
            continue
    return None


def forget_move(log: Log, disk: Disk) -> None:
    """In the directory of `log`, remove the files that mark a move."""
    for name in (MOVED_HERE, MOVING_AWAY, OUTDATED):
        disk.unlink(f"{log.directory}/{name}")


def prefer(first: Log, second: Log, disk: Disk) -> tuple[Log, Log]:
    """Return (log to keep, log to remove) for an original and its copy after an interrupted move.
    The log to remove is the log marked as outdated, else the shorter log, else (equal lengths) the
    original. Raises CorruptionError if neither log is marked as a copy."""
    copies = [log for log in (first, second) if disk.exists(f"{log.directory}/{MOVED_HERE}")]
    if not copies:
        raise CorruptionError(
            f"{first.directory} and {second.directory} contain logs of the same partition, and"
            " neither is marked as a copy of the other"
        )
    copy = copies[0]
    other = second if copy is first else first
    if disk.exists(f"{other.directory}/{OUTDATED}"):
        return copy, other
    if disk.exists(f"{copy.directory}/{OUTDATED}"):
        return other, copy
    if copy.log_end_offset >= other.log_end_offset:
        return copy, other
    return other, copy
