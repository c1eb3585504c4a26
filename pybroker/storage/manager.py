"""All logs of a broker: finding them at the start, making and deleting them, and the chores.

Methods that say so wait for the disk and belong in the Blocking port, where several may run at a
time.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from pybroker.errors import BrokerError, DiskFull, ErrorCode, StartupError, StorageError
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.ports import Clock, Disk, Proc, Rng
from pybroker.storage import checkpointed, meta
from pybroker.storage.deletions import PendingDeletions
from pybroker.storage.directory import LogDirectory
from pybroker.storage.filename import (
    DELETED_DIRECTORY,
    PARTITION_METADATA,
    STRAY_DIRECTORY,
    marked_directory,
    partition_directory,
)
from pybroker.storage.loader import Known, Opened, create_log, open_log
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import Damage, LogOwner
from pybroker.storage.producer_state import EXPIRATION_MS_DEFAULT

_logger = logging.getLogger(__name__)
FLUSH_IDLE_MS_DEFAULT: Final = 15_000
"""How long a partition must be quiet before it is made durable; asked every 10 s, that keeps the
promise of 30 s."""
_REFUSAL_LOG_MS: Final = 10_000
"""A full disk refuses every write; it is told so often."""


class LogManager:
    """Owns the log directories from `lock` to `shutdown`, and every `Log` in them.

    Invariant: a partition is in one directory only.
    """

    def __init__(
        self,
        *,
        directories: Sequence[str],
        disk: Disk,
        clock: Clock,
        proc: Proc,
        defaults: LogConfig,
        config_of: Callable[[str], LogConfig] | None = None,
        rng: Rng | None = None,
        producer_id_expiration_ms: int = EXPIRATION_MS_DEFAULT,
        flush_idle_ms: int = FLUSH_IDLE_MS_DEFAULT,
        on_failure: Callable[[str, StorageError], None] | None = None,
        foreign_names: Iterable[str] = (),
    ) -> None:
        """`config_of` gives a topic's configuration where it is known before the start.
        `on_failure` is told the directory whose disk has failed, once; its partitions answer
        KAFKA_STORAGE_ERROR from then on. `foreign_names` are entries of a log directory that
        others own."""
        names = frozenset(foreign_names)
        self._directories = [LogDirectory(path, disk, names) for path in _normalized(directories)]
        self._disk = disk
        self._clock = clock
        self._boot_id = proc.boot_id()
        self._process_id = proc.pid()
        self._defaults = defaults
        self._config_of = config_of
        self._rng: Rng = rng if rng is not None else random.SystemRandom()
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._flush_idle_ms = flush_idle_ms
        self._on_failure = on_failure
        self._owner = LogOwner(
            self._lower_checkpoints,
            self._log_failed,
            self._rng,
            lambda partition, error: self._tell_refusal(f"log partition={partition}", error),
        )
        self._refusals = 0
        self._refusals_told_ms = -_REFUSAL_LOG_MS
        self._logs: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, LogDirectory] = {}
        self._deleted = PendingDeletions(disk.remove_tree)
        self._suspects: frozenset[TopicPartition] = frozenset()
        self._started = False
        # Held around changes of the maps and of what is checkpointed, so that methods which wait
        # for the disk may run in several threads. Never taken while a log's own lock is held.
        self._lock = threading.RLock()

    # -- start and stop

    @staticmethod
    def peek(directories: Sequence[str], disk: Disk) -> tuple[int | None, str | None]:
        """Broker id and cluster id in the directories' `meta.properties`, None where none says so.
        Touches nothing. Raises StartupError where they contradict each other."""
        broker_ids: dict[int, str] = {}
        cluster_ids: dict[str, str] = {}
        for path in _normalized(directories):
            found = LogDirectory(path, disk).meta()
            if found is not None and found.broker_id is not None:
                broker_ids.setdefault(found.broker_id, path)
            if found is not None and found.cluster_id is not None:
                cluster_ids.setdefault(found.cluster_id, path)
        for what, ids in (("broker", broker_ids), ("cluster", cluster_ids)):
            if len(ids) > 1:
                listed = ", ".join(f"{path} to {what} {id}" for id, path in ids.items())
                raise StartupError(f"log directories belong together no more: {listed}")
        return next(iter(broker_ids), None), next(iter(cluster_ids), None)

    def lock(self) -> None:
        """Take the locks of all directories; `start` does it too. Raises StartupError, holding
        none."""
        try:
            for directory in self._directories:
                directory.lock(self._process_id)
        except StartupError:
            self.unlock()
            raise

    def start(self, broker_id: int, cluster_id: str) -> None:
        """Check everything, then open all logs. Waits for the disk. Raises StartupError with one
        line; then nothing has been changed but that new directories and lock files exist."""
        for directory in self._directories:
            directory.check(broker_id, cluster_id)
        self.lock()
        try:
            found = self._find_partitions()
            for directory in self._directories:
                directory.begin(broker_id, cluster_id, self._boot_id)
            opened = {
                partition: self._open(partition, path, directory)
                for partition, (path, directory) in found.items()
            }
            for directory in self._directories:
                directory.forget_others(self._in(directory), self._logs)
                directory.in_use(self._boot_id)
        except StorageError as error:
            self.unlock()
            raise StartupError(f"the logs cannot be opened: {error}") from error
        except StartupError:
            self.unlock()
            raise
        self._suspects = frozenset(
            partition for partition, result in opened.items() if self._is_suspect(result)
        )
        self._started = True
        recovered = sum(result.recovered for result in opened.values())
        _logger.info("logs opened partitions=%d recovered=%d", len(opened), recovered)

    def _find_partitions(self) -> dict[TopicPartition, tuple[str, LogDirectory]]:
        found: dict[TopicPartition, tuple[str, LogDirectory]] = {}
        for directory in self._directories:
            for partition, path in directory.partitions():
                if partition in found:
                    raise StartupError(
                        f"partition {partition} is in {found[partition][0]} and in {path};"
                        " move one of them away"
                    )
                found[partition] = (path, directory)
        return found

    def _open(self, partition: TopicPartition, path: str, directory: LogDirectory) -> Opened:
        high_watermark = directory.high_watermarks.offsets.get(partition, 0)
        opened = open_log(
            partition,
            path,
            self._config(partition.topic),
            self._disk,
            self._owner,
            Known(
                clean=directory.was_clean,
                recovery_point=directory.recovery_points.offsets.get(partition),
                log_start_offset=directory.log_starts.offsets.get(partition),
                floor_offset=high_watermark if directory.same_boot else 0,
            ),
            now_ms=self._clock.wall_ms(),
        )
        self._logs[partition] = opened.log
        self._home[partition] = directory
        return opened

    def _config(self, topic: str) -> LogConfig:
        return self._defaults if self._config_of is None else self._config_of(topic)

    def _is_suspect(self, opened: Opened) -> bool:
        log = opened.log
        home = self._home[log.topic_partition]
        if home.was_clean or home.same_boot:
            return False
        return (
            opened.cut_bytes > 0
            or log.damage is not None
            or log.log_end_offset > log.recovery_point
            or self.high_watermark_checkpoint(log.topic_partition) > log.log_end_offset
        )

    def suspects(self) -> frozenset[TopicPartition]:
        """Partitions that may lack records they had before the machine went down: it booted since
        their broker, which did not end properly, wrote beyond their recovery point. Fixed at the
        start."""
        return self._suspects

    def record_incarnation(self, incarnation: int) -> None:
        """Note the broker's incarnation beside the boot id. Waits for the disk."""
        for directory in self._usable():
            directory.in_use(self._boot_id, incarnation)

    def shutdown(
        self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int = -1
    ) -> None:
        """Make all logs durable, write the checkpoints and leave the clean mark in each directory
        where nothing failed and no log is damaged. Waits for the disk. Idempotent."""
        if not self._started:
            self.unlock()
            return
        self._started = False
        for log in self._logs.values():
            self._end_log(log)
        try:
            for directory in self._usable():
                try:
                    self._write_checkpoints(directory, high_watermarks)
                    if not any(log.damage for log in self._in(directory).values()):
                        directory.end(broker_epoch)
                except StorageError as error:
                    self._directory_failed(directory, error)
        finally:
            self.unlock()

    def _end_log(self, log: Log) -> None:
        try:
            if log.failure is None and log.damage is None:
                log.flush()
            log.close()
        except (BrokerError, StorageError) as error:
            failure = StorageError(str(error))
            self._directory_failed(self._home[log.topic_partition], failure)

    def unlock(self) -> None:
        """Release the locks, as `shutdown` does; without it a crash is what the next start sees.
        Idempotent."""
        for directory in self._directories:
            directory.unlock()

    # -- partitions

    def log(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def all(self) -> Mapping[TopicPartition, Log]:
        """A snapshot."""
        with self._lock:
            return dict(self._logs)

    def damaged(self) -> Mapping[TopicPartition, Damage]:
        return {key: log.damage for key, log in self.all().items() if log.damage is not None}

    def create(self, partition: TopicPartition, config: LogConfig, topic_id: uuid.UUID) -> Log:
        """The log of a partition, made in the directory with the fewest partitions if there is
        none; an existing one takes the configuration and, if it has none, the topic id. Raises
        BrokerError INCONSISTENT_TOPIC_ID if there is one of another topic, KAFKA_STORAGE_ERROR if
        there was one whose directory is missing; StorageError."""
        with self._lock:
            existing = self._logs.get(partition)
            if existing is not None:
                return self._adopt(existing, config, topic_id)
            for each in self._directories:
                each.require_not_missing(partition)
            usable = self._usable()
            if not usable:
                raise StorageError(f"create {partition}: all log directories have failed")
            counts = {directory.path: 0 for directory in usable}
            for home in self._home.values():
                if home.path in counts:
                    counts[home.path] += 1
            directory = min(usable, key=lambda each: counts[each.path])
            directory.forget(partition)
            path = f"{directory.path}/{partition_directory(partition)}"
            log = create_log(partition, path, config, self._disk, self._owner)
            self._write_topic_id(log, topic_id)
            self._home[partition] = directory
            self._logs[partition] = log
            return log

    def _adopt(self, log: Log, config: LogConfig, topic_id: uuid.UUID) -> Log:
        if log.topic_id is not None and topic_id not in (NO_TOPIC_ID, log.topic_id):
            raise BrokerError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log.topic_partition} holds data of topic id {log.topic_id}, not {topic_id}",
            )
        log.set_config(config)
        if log.topic_id is None:
            self._write_topic_id(log, topic_id)
        return log

    def _write_topic_id(self, log: Log, topic_id: uuid.UUID) -> None:
        if topic_id != NO_TOPIC_ID:
            # Not durable by itself: where it is lost, the controller says it again.
            content = meta.encode_partition_metadata(topic_id)
            self._disk.write(f"{log.directory}/{PARTITION_METADATA}", content)
            log.topic_id = topic_id

    def set_config(self, partition: TopicPartition, config: LogConfig) -> None:
        log = self._logs.get(partition)
        if log is not None:
            log.set_config(config)

    def delete(self, partition: TopicPartition) -> None:
        """Forget the partition and rename its directory; the files go with `remove_deleted` after
        file.delete.delay.ms, or at the next start. No error if there is none. Waits for the disk.
        Raises StorageError."""
        with self._lock:
            log = self._logs.get(partition)
            if log is not None:
                path = self._take_away(log, DELETED_DIRECTORY)
                due_ms = self._clock.wall_ms() + log.config.file_delete_delay_ms
                self._deleted.add(due_ms, path)
            for each in self._directories:
                each.give_up(partition)

    def set_aside(self, partition: TopicPartition) -> None:
        """Forget the partition, but keep its files in a renamed directory: they belong to another
        topic of the same name. Waits for the disk. Raises StorageError."""
        with self._lock:
            log = self._logs.get(partition)
            if log is not None:
                path = self._take_away(log, STRAY_DIRECTORY)
                _logger.warning("partition set aside partition=%s path=%s", partition, path)

    def _take_away(self, log: Log, purpose: str) -> str:
        """Rename the directory of a log that is not used any more; gives the new path."""
        partition = log.topic_partition
        directory = self._home[partition]
        unique = uuid.UUID(bytes=self._rng.randbytes(16))
        path = f"{directory.path}/{marked_directory(partition, unique, purpose)}"
        try:
            directory.forget(partition)  # first, or a kill in between would make it a missing one
        except DiskFull as error:
            # Deleting is how room is made; the next checkpoint leaves the partition out.
            self._tell_refusal("checkpoint", error)
        log.release()
        del self._logs[partition]
        del self._home[partition]
        self._disk.rename(log.directory, path)
        self._disk.sync_dir(directory.path)
        return path

    # -- checkpoints

    def high_watermark_checkpoint(self, partition: TopicPartition) -> int:
        """The high watermark as last written, a lower bound of the true one; 0 if not known."""
        home = self._home.get(partition)
        return 0 if home is None else home.high_watermarks.offsets.get(partition, 0)

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write high watermarks, recovery points and log starts of all partitions. A partition
        without a high watermark keeps the one that it had. Waits for the disk, where anything has
        changed. On a full disk the files stay as they are: the offsets in them only grow, so older
        ones are true, too."""
        for directory in self._usable():
            self._checkpoint(
                directory, partial(self._write_checkpoints, directory, high_watermarks)
            )

    def _checkpoint(self, directory: LogDirectory, write: Callable[[], None]) -> None:
        try:
            write()
        except DiskFull as error:
            self._tell_refusal("checkpoint", error)
        except StorageError as error:
            self._directory_failed(directory, error)

    def _write_checkpoints(
        self, directory: LogDirectory, high_watermarks: Mapping[TopicPartition, int]
    ) -> None:
        with self._lock:
            logs = self._in(directory)
            known = directory.high_watermarks.offsets
            marks = checkpointed.high_watermarks(logs, known, high_watermarks)
            directory.high_watermarks.write(directory.missing | marks)
            directory.log_starts.write(checkpointed.log_starts(logs))
            self._write_recovery_points(directory)

    def _write_recovery_points(self, directory: LogDirectory) -> None:
        with self._lock:
            known = directory.recovery_points.offsets
            points = checkpointed.recovery_points(self._in(directory), known)
            directory.recovery_points.write(points)

    def _lower_checkpoints(self, partition: TopicPartition, offset: int) -> None:
        with self._lock:
            home = self._home.get(partition)
            if home is not None:
                home.recovery_points.lower(partition, offset)
                home.high_watermarks.lower(partition, offset)

    # -- chores

    def flush_idle(self, now_ms: int) -> int:
        """Make closed segments durable, and partitions that have been quiet for a while or whose
        flush.ms or flush.messages has come; gives how many were touched. Waits for the disk. To be
        called every 10 s."""
        touched = 0
        for log in self.all().values():
            if log.failure is not None or log.damage is not None:
                continue
            quiet = now_ms - log.last_append_ms >= self._flush_idle_ms
            behind = log.recovery_point < log.log_end_offset
            everything = (behind and quiet) or log.needs_flush(now_ms)
            if not everything and not log.has_closed_unflushed:
                continue
            try:
                log.flush(closed_only=not everything, now_ms=now_ms)
                touched += 1
            except BrokerError:
                # The log has told us by `_owner`, and so it is in the process's log.
                continue
        if touched:
            for directory in self._usable():
                self._checkpoint(directory, partial(self._write_recovery_points, directory))
        return touched

    def run_retention(self, now_ms: int, hw_of: Callable[[TopicPartition], int]) -> int:
        """Delete what the topics' retention allows, and forget idle producers; gives the number of
        segments deleted. Their files are renamed; `remove_deleted` removes them. `hw_of` gives a
        partition's high watermark. Belongs to the event loop, as appending does."""
        count = 0
        for partition, log in self.all().items():
            try:
                deleted = log.delete_expired(now_ms, hw_of(partition))
                log.producers.expire(now_ms, self._producer_id_expiration_ms)
            except (BrokerError, StorageError) as error:
                _logger.error("retention failed partition=%s error=%s", partition, error)
                continue
            if deleted:
                _logger.info(
                    "segments deleted partition=%s count=%d log_start=%d",
                    partition,
                    deleted,
                    log.log_start_offset,
                )
            count += deleted
        return count

    def remove_deleted(self, now_ms: int) -> None:
        """Remove the files of deleted segments and partitions whose delay has passed. Waits for
        the disk."""
        for log in self.all().values():
            log.remove_doomed(now_ms)
        with self._lock:
            self._deleted.remove_due(now_ms)

    # -- directories

    @property
    def failed_directories(self) -> Mapping[str, StorageError]:
        return {each.path: each.failure for each in self._directories if each.failure is not None}

    def _usable(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def _in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        with self._lock:
            return {key: log for key, log in self._logs.items() if self._home[key] is directory}

    def _log_failed(self, partition: TopicPartition, error: StorageError) -> None:
        home = self._home.get(partition)
        if home is not None:
            self._directory_failed(home, error)

    def _tell_refusal(self, what: str, error: StorageError) -> None:
        self._refusals += 1
        now_ms = self._clock.wall_ms()
        if abs(now_ms - self._refusals_told_ms) >= _REFUSAL_LOG_MS:
            _logger.error("write refused what=%s error=%s times=%d", what, error, self._refusals)
            self._refusals_told_ms = now_ms
            self._refusals = 0

    def _directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        if directory.failure is not None:
            return
        directory.failure = error
        _logger.error("log directory failed path=%s error=%s", directory.path, error)
        for log in self._in(directory).values():
            log.fail(error)
        if self._on_failure is not None:
            self._on_failure(directory.path, error)


def _normalized(directories: Iterable[str]) -> list[str]:
    """Without the slash at the end, and each once."""
    return list(dict.fromkeys(path.rstrip("/") or "/" for path in directories))
