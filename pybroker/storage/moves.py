"""A replica on its way from one log directory to another (KIP-113) while it is served.

The copy grows in `<topic>-<partition>.<32 hex>-future` until it is nearly as long as the log; then
it gets its final name, catches up, and takes the log's place in one step of the event loop. Both
directories hold the partition for that moment; the longer one is the right one, because first only
the log grows and afterwards only its copy. Where the one that counts is cut, the other one is
marked first, and is not the right one. Which logs there are is the manager's.
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

_logger = logging.getLogger(__name__)
SLICE_BYTES: Final = 1024**2
"""How much is copied at once: the longest that anybody waits for."""


class MoveCancelled(PybrokerError):
    """The move is not wanted any more."""


class ReplicaMove:
    """Life: `prepare`, `copy` until nearly nothing is missing, `rename`, `copy` again, `catch_up`
    in the step that swaps the logs. All but `catch_up` wait for the disk.

    Invariant: the copy holds a prefix of the source's batches, unless `lower` was called since the
    last step.
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
        """The final directory, once the copy is there."""
        self._marks = threading.Lock()
        """Of both, and of the mark in the directory of the log that does not count. Held briefly,
        and inside of the table's."""
        self._cancelled = False
        self.done = False
        """Whether the copy has taken the log's place."""
        self._lock = threading.Lock()

    @property
    def log(self) -> Log:
        """The copy; there is one after `prepare`."""
        assert self._log is not None
        return self._log

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes and log end of the copy; nothing before `prepare`."""
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
        """No further step succeeds; one that runs goes on to its end."""
        self._cancelled = True

    def abandon(self) -> str | None:
        """Cancel, wait for a step that runs, and close the copy; gives its directory. The source
        stays where it is."""
        self._cancelled = True
        with self._lock:
            self.stay()
            if self._log is None:
                return None
            self._log.release()
            return self._log.directory

    def lower(self, offset: int) -> None:
        """The log that counts is about to be cut at `offset`: the source, or the copy that has
        taken its place. By who holds the table's lock. Waits for the disk. Raises BrokerError
        KAFKA_STORAGE_ERROR: then it must not be cut now."""
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
            # Its disk fails alone: that of the log which is to be cut may be healthy.
            raise (self.source if self.done else self.log).fail(error) from error

    def _outdate(self, directory: str) -> None:
        """After a kill the log there must not be taken for the newer one for being longer."""
        self._disk.replace(f"{directory}/{OUTDATED}", b"")

    def prepare(self, unique: uuid.UUID) -> None:
        """Make the directory. Raises StorageError, BrokerError."""
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
        """Where the batch begins that holds the source's log start."""
        source = self.source
        start, end = source.log_start_offset, source.log_end_offset
        data = source.read(
            start, HEADER_SIZE, upper_offset=end, at_least_one_batch=True, cached_only=False
        )
        return read_header(data).base_offset if data else start

    def copy(self) -> bool:
        """Copy a slice; whether the copy is now as long as the source was before. Raises
        MoveCancelled, BrokerError, StorageError."""
        with self._lock:
            self._require_wanted()
            self._shorten()
            end = self.source.log_end_offset
            try:
                start = self._first_offset()
                if self.log.log_end_offset < start:
                    # Retention was quicker: what is missing is gone.
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
        """The copy begins with a whole batch, the log may begin inside it."""
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
        """Make the copy durable and give it its final name. Raises as `copy`."""
        with self._lock:
            self._require_wanted()
            log, source = self.log, self.source
            log.flush()
            log.close()
            self._copy_epochs(log)
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
        """Say in the source's directory, durably, that the copy may be newer soon: where the target
        is offline at the next start, nobody could tell else."""
        try:
            path = f"{self.source.directory}/{MOVING_AWAY}"
            self._disk.replace(path, _naming(self.target.path))
        except DiskFull as error:
            # A full disk is the best reason to move something away.
            _logger.warning("move not announced partition=%s error=%s", self.topic_partition, error)

    def stay(self) -> None:
        """The move will not be finished: the source is the log, wherever the target is. Waits for
        the disk. Idempotent; nothing once the copy has taken the log's place."""
        path = f"{self.source.directory}/{MOVING_AWAY}"
        try:
            if not self.done and self._disk.exists(path):
                self._disk.unlink(path)
                self._disk.sync_dir(self.source.directory)
        except StorageError as error:
            _logger.warning("mark of a move not removed path=%s error=%s", path, error)

    def _copy_epochs(self, log: Log) -> None:
        """Also those in which nothing was written. Where the source was cut, the copy keeps those
        of its own batches: it is cut next, and the source's would seem to be damage until then."""
        self.source.persist_epochs()
        try:
            content = self._disk.read(f"{self.source.directory}/{LEADER_EPOCHS}")
        except FileNotFoundError:
            return
        if self._lowered is not None or self.source.log_end_offset < log.log_end_offset:
            return
        self._disk.replace(f"{log.directory}/{LEADER_EPOCHS}", content)

    def catch_up(self) -> bool:
        """On the event loop: copy the last bit from the page cache, and whether the copy is now as
        long as the log and may take its place. Never waits."""
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
        """After the swap: then the old directory may go. Raises BrokerError, StorageError."""
        self.log.flush()
        self._disk.sync_dir(self.log.directory)
        self._disk.sync_dir(self.target.path)

    def forget_origin(self) -> None:
        """The old directory is gone."""
        self._disk.unlink(f"{self.log.directory}/{MOVED_HERE}")

    def _require_wanted(self) -> None:
        if self._cancelled:
            raise MoveCancelled(f"{self.topic_partition} is not to be moved any more")
        if self.source.failure is not None:
            raise StorageError(str(self.source.failure))


def _parent(directory: str) -> str:
    """The log directory of a partition's directory."""
    return directory.rpartition("/")[0]


def _naming(log_directory: str) -> bytes:
    return f"{log_directory}\n".encode()


def counterpart(log: Log, disk: Disk) -> str | None:
    """The log directory in which a newer or older log of the same partition is, or was a moment
    ago; None for a log that is not moved. Raises StorageError."""
    for name in (MOVED_HERE, MOVING_AWAY):
        try:
            return disk.read(f"{log.directory}/{name}").decode(errors="replace").strip()
        except FileNotFoundError:
            continue
    return None


def forget_move(log: Log, disk: Disk) -> None:
    """There is one log of the partition, this one."""
    for name in (MOVED_HERE, MOVING_AWAY, OUTDATED):
        disk.unlink(f"{log.directory}/{name}")


def prefer(first: Log, second: Log, disk: Disk) -> tuple[Log, Log]:
    """Of two logs of one partition, one of which was moved when the broker was killed: the one to
    keep, which is the one that was not cut since, or else the longer one, and the other. Raises
    CorruptionError if neither is a copy."""
    copies = [log for log in (first, second) if disk.exists(f"{log.directory}/{MOVED_HERE}")]
    if not copies:
        raise CorruptionError(f"{first.directory} and {second.directory} hold one partition")
    copy = copies[0]
    other = second if copy is first else first
    if disk.exists(f"{other.directory}/{OUTDATED}"):
        return copy, other
    if disk.exists(f"{copy.directory}/{OUTDATED}"):
        return other, copy
    if copy.log_end_offset >= other.log_end_offset:
        return copy, other
    return other, copy
