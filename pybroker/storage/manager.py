"""All logs of a broker and their log directories. Methods that wait for the disk must be called in
a thread; several may run at once."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from pybroker.errors import BrokerError, DiskFull, ErrorCode, StartupError, StorageError
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.ports import Clock, Disk, Proc, Rng
from pybroker.storage import chores, meta
from pybroker.storage.checkpoint_writer import CheckpointWriter
from pybroker.storage.directory import LogDirectory
from pybroker.storage.directory_set import DirectorySet
from pybroker.storage.ending import Ending
from pybroker.storage.filename import (
    DAMAGED_DIRECTORY,
    DELETED_DIRECTORY,
    PARTITION_METADATA,
    STRAY_DIRECTORY,
    partition_directory,
)
from pybroker.storage.loader import create_log
from pybroker.storage.log import Log
from pybroker.storage.log_changes import LogChanges, take
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import Flushable, LogOwner
from pybroker.storage.log_table import LogTable
from pybroker.storage.opening import Opening, is_suspect
from pybroker.storage.producer_state import EXPIRATION_MS_DEFAULT
from pybroker.storage.relocation import Relocations
from pybroker.storage.replica_health import Event, Health, ReplicaHealth

log = logging.getLogger(__name__)
FLUSH_IDLE_MS_DEFAULT: Final = 15_000
"""The time without appends after which a log is flushed. The broker checks this every second, so a
record is durable at the latest 16 s after the last append."""

FailureListener = Callable[[str, StorageError], None]
"""Called in any thread with the path of a log directory that has failed, and the error."""


def _nobody(log: Flushable) -> bool:
    return False


class LogManager:
    """Owns the log directories of a broker, and every `Log` in them, from `lock` to `shutdown`.

    Invariant: the log of a partition is in one log directory only."""

    def __init__(
        self,
        *,
        directories: Sequence[str],
        disk: Disk,
        clock: Clock,
        proc: Proc,
        defaults: LogConfig,
        rng: Rng | None = None,
        producer_id_expiration_ms: int = EXPIRATION_MS_DEFAULT,
        flush_idle_ms: int = FLUSH_IDLE_MS_DEFAULT,
        on_failure: Callable[[str, StorageError], None] | None = None,
        foreign_names: Iterable[str] = (),
    ) -> None:
        """`on_failure` is called once for each log directory whose disk fails. `foreign_names` are
        the entries of a log directory that belong to other components."""
        self._directories = DirectorySet(directories, disk, frozenset(foreign_names))
        self.disk = disk
        self.free_bytes = disk.free_bytes
        self._clock = clock
        self._boot_id = proc.boot_id()
        self._process_id = proc.pid()
        self._defaults = defaults
        self._rng: Rng = rng if rng is not None else random.SystemRandom()
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._flush_idle_ms = flush_idle_ms
        self._listeners: list[FailureListener] = [] if on_failure is None else [on_failure]
        self.refusals = chores.Refusals(clock)
        self.changes = LogChanges()
        self._table = LogTable(self._directories, disk, self._rng)
        self._logs = self._table.logs
        self._home = self._table.home
        self._lock = self._table.lock
        self.deleted = self._table.deleted
        self.checkpoints = CheckpointWriter(
            self._table,
            self.changes,
            refused=self.refusals.tell,
            failed=self._directory_failed,
        )
        self.health = ReplicaHealth(disk)
        self.moves = Relocations(
            self._table,
            clock,
            owner_in=self._owner_in,
            checkpoint=self._checkpoint_one,
            health=self.health,
        )
        self.ending = Ending(self._table, disk, self._directory_failed)
        self.accepted_losses: frozenset[TopicPartition] = frozenset()  # at this start
        self._started = False
        self.sync_due: Callable[[Flushable], bool] = _nobody
        """Called for a log that needs a flush by flush.messages. Returns True if the log will be
        flushed."""

    # -- start and stop

    @staticmethod
    def peek(directories: Sequence[str], disk: Disk) -> tuple[int | None, str | None]:
        """Return the broker id and the cluster id from the files `meta.properties`. An id is None
        if no file has it. Raises StartupError if the files contradict each other, or if no
        directory is usable."""
        return DirectorySet(directories, disk).identities()

    def lock(self) -> None:
        """Lock all usable log directories for this process. Raises StartupError if another process
        holds a lock, or if no directory is usable. After an error no directory is locked."""
        self._directories.lock(self._process_id)

    @property
    def is_fresh(self) -> bool:
        """Whether all usable log directories are new: none has a file `meta.properties`. Valid
        between `lock` and `start`."""
        return self._directories.is_fresh

    def start(
        self,
        broker_id: int,
        cluster_id: str,
        configs: Mapping[str, LogConfig] | None = None,
        *,
        expects_data: bool = False,
    ) -> None:
        """Check the log directories, and open all logs. Waits for the disk. `configs`: topic ->
        LogConfig, for topics with options of their own. `expects_data`: see `DirectorySet.settle`.
        Raises StartupError."""
        self._directories.check(broker_id, cluster_id)
        self.lock()
        opening = Opening(
            self._directories,
            self.disk,
            self._rng,
            owner_in=self._owner_in,
            config_of=lambda topic: (configs or {}).get(topic, self._defaults),
            now_ms=self._clock.wall_ms(),
        )
        try:
            opening.run(broker_id, cluster_id, self._boot_id, expects_data=expects_data)
        except StorageError as error:
            self.unlock()
            raise StartupError(f"the logs of this broker cannot be opened: {error}") from error
        except StartupError:
            self.unlock()
            raise
        for partition, found in opening.opened.items():
            self._logs[partition] = found.log
            self._home[partition] = opening.home[partition]
            self.changes.note(partition)
            self.health.find(found.log, is_suspect=is_suspect(opening.home[partition]))
        for directory in self._directories.usable():
            self.changes.unsaved.update(directory.missing)
            for partition in directory.missing:
                self.health.move(partition, Event.LOST)
        self.accepted_losses = frozenset(opening.accepted_losses)
        self.moves.unfinished = opening.unfinished_moves
        for path in opening.leftovers:
            self.deleted.add(0, path)
        self._started = True
        recovered = sum(result.recovered for result in opening.opened.values())
        log.info("logs opened partitions=%d recovered=%d", len(opening.opened), recovered)

    def _owner_in(self, directory: LogDirectory) -> LogOwner:
        return LogOwner(
            partial(self._lower_checkpoints, directory),
            lambda partition, error: self._directory_failed(directory, error),
            self._rng,
            partial(self.refusals.of_log, directory.path),
            lambda log: self.sync_due(log),  # noqa: PLW0108 - replaced when the broker starts
            self.changes,
        )

    @property
    def gave_up(self) -> bool:
        """Whether the operator gave up a log directory (accepted its loss) before this start."""
        return bool(self._directories.given_up)

    @property
    def suspects(self) -> set[TopicPartition]:
        """The replicas that may have lost records by a power loss or a disk failure before this
        start."""
        return {key for key, home in self._home.items() if is_suspect(home)}

    @property
    def may_lack_logs(self) -> bool:
        """Whether a power loss may have removed whole logs, because the names of their directories
        were not synced."""
        return any(each.meta() and is_suspect(each) for each in self._directories.usable())

    def record_incarnation(self, incarnation: int) -> None:
        """Store `incarnation` (see `LogDirectory.in_use`). The replicas that may lack records
        (`suspects`) must already have left the ISR and the eligible leader replicas (KIP-966).
        Waits for the disk."""
        family = self._directories.family
        with self._lock:
            for directory in self._directories.usable():
                settle = partial(directory.settle, self._boot_id, incarnation, family)
                self.checkpoints.attempt(directory, settle)
            self.moves.settle(self.accepted_losses)

    def shutdown(
        self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int = -1
    ) -> None:
        """Close all logs, and write the checkpoints. Write the clean mark in each usable log
        directory whose logs are all undamaged and durable. Waits for the disk. Idempotent."""
        if not self._started:
            self.unlock()
            return
        self._started = False
        self.moves.cancel_all()
        self.ending.end_rest()

        def end(directory: LogDirectory) -> None:
            self.checkpoints.write_directory(directory, high_watermarks)
            if self._table.within(directory).keys() <= self.ending.ended:
                directory.end(broker_epoch)

        try:
            for directory in self._directories.usable():
                self.checkpoints.attempt(directory, partial(end, directory))
        finally:
            self.unlock()

    def unlock(self) -> None:
        """Release the locks. If `shutdown` was not called, the next start recovers the logs."""
        self._directories.unlock()

    # -- partitions

    def log(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def all(self) -> Mapping[TopicPartition, Log]:
        """Return a copy of partition -> log."""
        # Without the lock: the event loop calls this, and a thread may hold the lock while it syncs
        # checkpoints. Copying a dictionary is atomic.
        return dict(self._logs)

    def create(
        self,
        partition: TopicPartition,
        config: LogConfig,
        topic_id: uuid.UUID,
        *,
        is_new: bool = True,
        is_copied: bool = False,
    ) -> Log:
        """Return the log of the partition; create the log if there is none. An existing log gets
        `config`. `is_new`: no broker has a log of the partition yet. `is_copied`: another broker
        leads, so a lost log can be copied from the leader.

        Raises StorageError. Raises BrokerError INCONSISTENT_TOPIC_ID if the log belongs to another
        topic. Raises BrokerError KAFKA_STORAGE_ERROR in these cases:

        - The log is unusable, or is possibly in an offline or lost log directory.
        - The log has disappeared or is incomplete, and `is_copied` is False.
        """
        with self._lock:
            existing = self._logs.get(partition)
            if existing is not None:
                self.health.require_complete(partition, is_copied)
                return self._adopt(existing, config, topic_id)
            health = self.health[partition]
            is_replaced = is_copied and health is Health.REPLACEABLE
            absence = self._directories.absence(replaced=not is_copied)
            if absence is not None and not is_new and not is_replaced:
                raise BrokerError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {partition} is missing: {absence}"
                )
            if health is Health.GONE and not is_copied:
                for each in self._directories.all:
                    each.require_not_missing(partition)
            is_lost = bool(self._directories.lost) and not is_new
            begins_anew = is_replaced or is_lost or health is Health.GONE
            directory = self._table.choose(partition, self.moves.take_request(partition))
            if directory is None:
                raise StorageError(f"{partition} has no log: all log directories have failed")
            path = f"{directory.path}/{partition_directory(partition)}"
            if begins_anew:  # the mark must exist before the log, and while checkpoints exist
                self.health.mark_incomplete(path)
            directory.forget(partition)
            log = create_log(partition, path, config, self.disk, self._owner_in(directory))
            self._write_topic_id(log, topic_id)
            if begins_anew:
                self.health.move(partition, Event.COPY_BEGUN)
                self._directories.give_up(partition)
            else:
                self.health.forget(partition)
            self._home[partition] = directory
            self._logs[partition] = log
            self.changes.note(partition)
            return log

    def _adopt(self, log: Log, config: LogConfig, topic_id: uuid.UUID) -> Log:
        if log.failure is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(log.failure))
        if log.topic_id is not None and topic_id not in (NO_TOPIC_ID, log.topic_id):
            raise BrokerError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log.topic_partition}: the log has topic id {log.topic_id}, expected {topic_id}",
            )
        self.set_config(log.topic_partition, config)
        if log.topic_id is None:
            self._write_topic_id(log, topic_id)
        return log

    def _write_topic_id(self, log: Log, topic_id: uuid.UUID) -> None:
        if topic_id != NO_TOPIC_ID:
            path = f"{log.directory}/{PARTITION_METADATA}"
            self.disk.write(path, meta.encode_partition_metadata(topic_id))
            log.epoch_file.comes_after(path)
            log.topic_id = topic_id

    def set_config(self, partition: TopicPartition, config: LogConfig) -> None:
        log = self._logs.get(partition)
        if log is not None:
            log.set_config(config)
            self.changes.touch(partition)

    def delete(self, partition: TopicPartition) -> None:
        """Delete the partition's log, if it has one. The files remain for file.delete.delay.ms.
        Waits for the disk. Raises StorageError."""
        self.moves.cancel(partition)
        with self._lock:
            log = self._logs.get(partition)
            if log is not None:
                path = self._take_away(log, DELETED_DIRECTORY)
                due_ms = self._clock.wall_ms() + log.config.file_delete_delay_ms
                self.deleted.add(due_ms, path)
            self.health.forget(partition)
            self._directories.give_up(partition)

    def set_aside(self, partition: TopicPartition, *, is_replaced: bool = False) -> None:
        """Close the log and rename its directory to `*-stray`. Forget the replica's health, unless
        a new copy follows (`is_replaced`). Waits for the disk. Raises StorageError."""
        self.moves.cancel(partition)
        with self._lock:
            partition_log = self._logs.get(partition)
            if partition_log is not None:
                purpose = STRAY_DIRECTORY if partition_log.damage is None else DAMAGED_DIRECTORY
                path = self._take_away(partition_log, purpose)
                log.warning("log renamed to stray partition=%s path=%s", partition, path)
            if not is_replaced:
                self.health.forget(partition)

    def _take_away(self, log: Log, purpose: str) -> str:
        """Close a log and rename its directory; `purpose` is a suffix such as DELETED_DIRECTORY.
        Return the new path."""
        partition = log.topic_partition
        directory = self._home[partition]
        if directory.failure is not None:
            raise StorageError(f"log directory {directory.path} is offline: {directory.failure}")
        try:
            directory.forget(partition)  # first: after a kill it would otherwise count as missing
        except DiskFull as error:
            # Deletion frees space, so it continues; the next checkpoint omits the partition.
            self.refusals.tell("checkpoint", error)
        log.release()
        del self._logs[partition]
        del self._home[partition]
        self.changes.note(partition)
        return self._table.rename_away(log, directory, purpose)

    # -- checkpoints

    def high_watermark_checkpoint(self, partition: TopicPartition) -> int:
        """Return the partition's last checkpointed high watermark; 0 if there is none."""
        home = self._home.get(partition)
        return 0 if home is None else home.high_watermarks.offsets.get(partition, 0)

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the changed high watermarks, recovery points and log start offsets. Partitions not
        in `high_watermarks` keep their old high watermark. Waits for the disk."""
        self.checkpoints.write_changed(high_watermarks)

    def _checkpoint_one(
        self, directory: LogDirectory, high_watermarks: Mapping[TopicPartition, int]
    ) -> None:
        write = partial(self.checkpoints.write_directory, directory, high_watermarks)
        self.checkpoints.attempt(directory, write)

    def _lower_checkpoints(
        self, directory: LogDirectory, partition: TopicPartition, offset: int
    ) -> None:
        with self._lock:
            if self._home.get(partition) is not directory:
                return
            self.moves.lower(partition, offset)
            directory.lower(partition, offset)
            self.changes.unsaved.add(partition)

    # -- chores

    def flush_idle(self, now_ms: int) -> int:
        """Flush the logs that are due (see `chores.flush_idle`), and checkpoint their recovery
        points. Return the number of flushed logs. Waits for the disk."""
        keys = take(self.changes.unflushed)
        logs = [log for key in keys if (log := self._logs.get(key)) is not None]
        try:
            touched = chores.flush_idle(logs, now_ms, self._flush_idle_ms)
        finally:
            self.changes.unflushed.update(chores.unflushed(logs))
        if touched:
            self.checkpoints.write_recovery_points(keys)
        return touched

    def run_retention(
        self,
        now_ms: int,
        hw_of: Callable[[TopicPartition], int],
        busy: Container[TopicPartition] = (),
        partitions: Iterable[TopicPartition] | None = None,
    ) -> int:
        """Run `chores.run_retention` for `partitions` (None: all), except those in `busy`. Return
        the number of deleted segments. Call this on the event loop only."""
        keys = [*self._logs] if partitions is None else partitions
        logs = [log for key in keys if (log := self._logs.get(key)) is not None]
        return chores.run_retention(logs, now_ms, hw_of, self.producer_id_expiration_ms, busy)

    def remove_deleted(self, now_ms: int) -> None:
        """Remove the files of deleted logs and segments whose delay has passed at the wall-clock
        time `now_ms`. Waits for the disk."""
        for partition in self.changes.doomed.copy():
            self.changes.doomed.discard(partition)
            log = self._logs.get(partition)
            if log is not None:
                log.remove_doomed(now_ms)
                if log.segments.has_doomed:
                    self.changes.doomed.add(partition)
        with self._lock:
            self.deleted.remove_due(now_ms)

    # -- directories

    @property
    def directories(self) -> Sequence[str]:
        """The paths of all log directories, including those that are offline."""
        return [directory.path for directory in self._directories.all]

    @property
    def usable_directories(self) -> Sequence[str]:
        return [directory.path for directory in self._directories.usable()]

    @property
    def failed_directories(self) -> Mapping[str, StorageError]:
        return self._directories.failed

    @property
    def lost_directories(self) -> Sequence[str]:
        """The paths of the lost log directories: they stored data of this broker and are absent."""
        return sorted(self._directories.lost.values())

    def home(self, partition: TopicPartition) -> str | None:
        """Return the path of the log directory with the partition's log; None if it has no log."""
        found = self._home.get(partition)
        return None if found is None else found.path

    def partitions_in(self, path: str) -> list[TopicPartition]:
        """Return the partitions in the log directory `path`. The directory may be offline."""
        with self._lock:
            return [key for key, home in self._home.items() if home.path == path]

    def listen(self, listener: FailureListener) -> None:
        """Call `listener`, in any thread, for each log directory that fails from now on."""
        self._listeners.append(listener)

    def _directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        if directory.failure is not None:
            return
        directory.fail(error)
        log.error("log directory failed, now offline path=%s error=%s", directory.path, error)
        logs = self._table.within(directory)
        self.moves.directory_failed(directory, logs)
        for partition, partition_log in logs.items():
            self.health.move(partition, Event.LOST)
            partition_log.fail(error)
        for listener in self._listeners:
            listener(directory.path, error)
