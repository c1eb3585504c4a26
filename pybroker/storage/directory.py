"""One log directory: its lock, its `meta.properties`, its checkpoints, and the state in which the
last run of the broker left it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Container, Mapping
from typing import Final

from pybroker.errors import (
    BrokerError,
    CorruptionError,
    ErrorCode,
    StartupError,
    StorageError,
)
from pybroker.model import TopicPartition
from pybroker.ports import Disk
from pybroker.storage import meta
from pybroker.storage.checkpoints import decode_offsets, encode_offsets
from pybroker.storage.filename import (
    ACCEPTED_LOSS,
    BOOT,
    CLEAN_MARK,
    CLEANER_OFFSETS,
    DIRECTORY_FILES,
    FAILED,
    FAMILY,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    is_deleted_directory,
    is_stray_directory,
    parse_future_directory,
    parse_partition_directory,
)
from pybroker.storage.meta import Family

log = logging.getLogger(__name__)
_PROCESS_ID_LENGTH_MAX: Final = 20


class UnusableDirectory(StartupError):
    """Raised if a log directory cannot be used. If another log directory is usable, the broker can
    still start."""


def make_durable(disk: Disk, path: str) -> None:
    """Create the directory `path` and its missing parents, and sync them. Raises StorageError."""
    made: list[str] = []
    while not disk.exists(path):
        made.append(path)
        path = _parent(path)
    if made:
        disk.make_dirs(made[0])
    for each in reversed(made):
        disk.sync_dir(_parent(each))


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"


class OffsetCheckpoint:
    """A checkpoint file of a log directory, with an offset for each partition."""

    __slots__ = ("_disk", "_path", "lost", "offsets")

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self.offsets: dict[TopicPartition, int] = {}
        self.lost = False
        """Whether the file existed, but was unreadable when it was loaded."""

    def load(self) -> None:
        try:
            data = self._disk.read(self._path)
            self.lost = not data  # Apache's broker creates an empty file
            self.offsets = decode_offsets(data, self._path) if data else {}
        except FileNotFoundError:
            return
        except CorruptionError as error:
            self.lost = True
            log.warning("checkpoint is damaged and is not used reason=%r", str(error))

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the content of the file by these offsets, durably. Raises StorageError."""
        if self.offsets != offsets or self.lost:
            self._disk.replace(self._path, encode_offsets(offsets))
            self.offsets = dict(offsets)
            self.lost = False

    def update(
        self, keys: Collection[TopicPartition], wanted: Mapping[TopicPartition, int]
    ) -> None:
        """Store the offsets of `keys` from `wanted`. Remove each partition in `keys` that has no
        offset in `wanted`. Raises StorageError."""
        changed = [key for key in keys if self.offsets.get(key) != wanted.get(key)]
        if not changed and not self.lost:
            return
        offsets = self.offsets.copy()
        for key in changed:
            offset = wanted.get(key)
            if offset is None:
                offsets.pop(key, None)
            else:
                offsets[key] = offset
        if not offsets.keys() <= self.offsets.keys():
            offsets = dict(sorted(offsets.items()))  # so that later sorts take little time
        self.write(offsets)

    def lower(self, partition: TopicPartition, offset: int | None) -> None:
        """Lower the offset that this checkpoint has for the partition to at most `offset`. With
        None, remove the partition from the checkpoint. Raises StorageError."""
        known = self.offsets.get(partition)
        if known is None or (offset is not None and known <= offset):
            return
        changed = {key: value for key, value in self.offsets.items() if key != partition}
        if offset is not None:
            changed[partition] = offset
        self.write(changed)


class LogDirectory:
    """One log directory. A starting broker calls `check`, `lock` and `begin`, and then opens the
    logs. A stopping broker calls `end`."""

    def __init__(self, path: str, disk: Disk, foreign_names: frozenset[str] = frozenset()) -> None:
        self.path = path
        self._disk = disk
        self._foreign_names = foreign_names
        self._release: Callable[[], None] | None = None
        self._boot: meta.Boot | None = None
        self._due: tuple[str, int, Family] | None = None
        self.was_clean = False
        """Whether the last broker that used this directory wrote the clean mark at its stop."""
        self.same_boot = False
        """Whether the files have all bytes that the last broker wrote, synced or not: the machine
        was not booted again since then, and the disk did not fail."""
        self.lost_power = False
        """Whether the machine was shut down or lost power since a broker last used this
        directory."""
        self.has_failed = False
        """Whether the disk failed while the last broker used it: bytes that were not synced may not
        be on the disk, although they can be read."""
        self.failure: StorageError | None = None
        """The error that took the directory offline; None while the broker uses the directory."""
        self.missing: dict[TopicPartition, int] = {}
        """Partition whose directory has disappeared from this log directory -> its checkpointed
        high watermark."""
        self.high_watermarks = OffsetCheckpoint(self._path(HIGH_WATERMARKS), disk)
        self.recovery_points = OffsetCheckpoint(self._path(RECOVERY_POINTS), disk)
        self.log_starts = OffsetCheckpoint(self._path(LOG_STARTS), disk)
        self.cleaner_offsets = OffsetCheckpoint(self._path(CLEANER_OFFSETS), disk)
        """Partition -> the offset below which the log cleaner has cleaned its log."""
        marks, points = self.high_watermarks, self.recovery_points
        self._checkpoints = (points, marks, self.log_starts, self.cleaner_offsets)

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}"

    def meta(self) -> meta.Meta | None:
        """Return the content of `meta.properties`; None without the file. Raises UnusableDirectory
        if the file is unreadable. Raises StartupError for the directory of another kind of broker,
        such as KRaft."""
        self._require_directory()
        path = self._path(META_PROPERTIES)
        try:
            found = meta.decode_meta(self._disk.read(path), path)
        except FileNotFoundError:
            return None
        except CorruptionError as error:
            raise UnusableDirectory(
                f"{error}; restore the file; if the log directory belongs to this broker, you may"
                " delete the file instead"
            ) from error
        except StorageError as error:
            raise UnusableDirectory(str(error)) from error
        if found.version != meta.META_VERSION:
            raise StartupError(
                f"{path} has version {found.version}, expected {meta.META_VERSION}: the log"
                " directory belongs to another kind of broker, such as a KRaft broker; choose"
                " another directory"
            )
        return found

    def _require_directory(self) -> None:
        if self._disk.exists(self.path) and not self._disk.is_dir(self.path):
            raise UnusableDirectory(
                f"{self.path} is not a directory, so it cannot be a log directory; remove the file"
                " at this path, or choose a directory with --data or log.dirs"
            )

    def require_usable(self) -> None:
        """Raise UnusableDirectory if the directory exists, but cannot be read or cannot be written.
        Changes nothing."""
        if not self._disk.exists(self.path):
            return
        self._require_directory()
        if not self._disk.writable(self.path):
            raise UnusableDirectory(f"log directory {self.path} is not writable for this user")
        try:
            self._disk.list_dir(self.path)
        except StorageError as error:
            raise UnusableDirectory(f"log directory {self.path} cannot be used: {error}") from error
        self.meta()

    def check(self, broker_id: int, cluster_id: str) -> None:
        """Check that the directory does not belong to another broker or cluster. Changes nothing.
        Raises StartupError."""
        found = self.meta() if self._disk.exists(self.path) else None
        if found is None:
            return
        if found.broker_id is not None and found.broker_id != broker_id:
            raise StartupError(
                f"log directory {self.path} belongs to broker {found.broker_id}, this is broker"
                f" {broker_id}; correct broker.id or log.dirs"
            )
        if found.cluster_id is not None and found.cluster_id != cluster_id:
            raise StartupError(
                f"log directory {self.path} belongs to cluster {found.cluster_id}, this is cluster"
                f" {cluster_id}; correct zookeeper.connect or log.dirs"
            )

    def lock(self, process_id: int) -> None:
        """Lock the directory until this process ends or calls `unlock`. Raises StartupError if
        another process holds the lock; UnusableDirectory if the directory cannot be locked."""
        if self._release is not None:
            return
        self.require_usable()
        path = self._path(LOCK)
        try:
            make_durable(self._disk, self.path)
            self._release = self._disk.lock(path, f"{process_id}\n")
        except StorageError as error:
            raise UnusableDirectory(f"log directory {self.path} cannot be used: {error}") from error
        if self._release is not None:
            return
        holder = self._holder(path)
        if holder == f"process {process_id}":
            raise StartupError(
                f"log directory {self.path} is the same as another one in log.dirs, by a link or"
                " a mount; list it once"
            )
        raise StartupError(
            f"log directory {self.path} is in use by {holder}; stop that broker or choose another"
            " directory"
        )

    def _holder(self, path: str) -> str:
        try:
            word = self._disk.read(path)[:_PROCESS_ID_LENGTH_MAX].decode(errors="replace").strip()
        except (FileNotFoundError, StorageError):
            word = ""
        return f"process {word}" if word.isdigit() else "another process"

    def unlock(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def partitions(self) -> list[tuple[TopicPartition, str]]:
        """Return the partitions in this log directory, each with the path of its directory."""
        if not self._disk.exists(self.path):
            return []
        found = []
        for name in self._disk.list_dir(self.path):
            partition = parse_partition_directory(name)
            if partition is not None and self._disk.is_dir(self._path(name)):
                found.append((partition, self._path(name)))
        return found

    def futures(self) -> list[tuple[TopicPartition, str]]:
        """Return the partitions with an unfinished move into this log directory, each with the path
        of its future directory."""
        if not self._disk.exists(self.path):
            return []
        parsed = [(parse_future_directory(name), name) for name in self._disk.list_dir(self.path)]
        return [(partition, self._path(name)) for partition, name in parsed if partition]

    def family(self) -> Family:
        """Return the list of all log directories of the broker, as stored in this directory. Raises
        StorageError."""
        path = self._path(FAMILY)
        try:
            return meta.decode_family(self._disk.read(path), path)
        except FileNotFoundError:
            return Family()
        except CorruptionError as error:
            log.warning("list of log directories is damaged and is not used reason=%r", str(error))
            return Family()

    def write_family(self, family: Family) -> None:
        """Store `family`, the list of all log directories of the broker, in this directory. Raises
        StorageError."""
        if self.family() != family:
            self._disk.replace(self._path(FAMILY), meta.encode_family(family))

    def accepted_losses(self) -> list[str]:
        """Return the losses that the operator accepts: paths or ids of lost log directories, or
        damaged partitions. Raises StorageError."""
        try:
            text = self._disk.read(self._path(ACCEPTED_LOSS)).decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line.strip() for line in text.splitlines() if line.strip()]

    def forget_accepted_losses(self) -> None:
        self._disk.unlink(self._path(ACCEPTED_LOSS))

    def begin(self, broker_id: int, cluster_id: str, boot_id: str, directory_id: str) -> None:
        """Find out how the last broker that used this directory stopped, load the checkpoints, and
        store this broker as the owner. Raises StorageError."""
        found = self.meta()
        content = meta.Meta(
            broker_id,
            cluster_id,
            directory_id=directory_id,
            other={} if found is None else found.other,
        )
        if found != content:
            self._disk.replace(self._path(META_PROPERTIES), meta.encode_meta(content))
        self.was_clean = self._disk.exists(self._path(CLEAN_MARK))
        try:
            left = meta.decode_boot(self._disk.read(self._path(BOOT)))
        except FileNotFoundError:
            left = None
        self.has_failed = self._disk.exists(self._path(FAILED))
        self.lost_power = left is not None and left.boot_id != boot_id
        self.same_boot = left is not None and left.boot_id == boot_id and not self.has_failed
        for checkpoint in self._checkpoints:
            checkpoint.load()
        self._finish_leftovers()

    def in_use(self, boot_id: str, incarnation: int = -1) -> None:
        """Mark the directory durably as in use: after an unclean stop the next start recovers the
        logs. `incarnation` grows with each registration of the broker in ZooKeeper; -1 if unknown.
        Raises StorageError."""
        self._boot = meta.Boot(boot_id, incarnation)
        self._disk.replace(self._path(BOOT), meta.encode_boot(self._boot))
        self._disk.unlink(self._path(CLEAN_MARK))
        self._disk.unlink(self._path(FAILED))
        self._disk.sync_dir(self.path)

    def settle(self, boot_id: str, incarnation: int, family: Family) -> None:
        """Finish the start of the broker: call `in_use`, store `family` (the broker's log
        directories), and remove the file of accepted losses. All replicas that may have lost
        records must already have left the ISR and the eligible leader replicas (KIP-966). Raises
        StorageError. If the error is DiskFull, `settle_due` must be called later."""
        self._due = boot_id, incarnation, family
        self.settle_due()

    @property
    def owes_settling(self) -> bool:
        """Whether the disk was full during `settle`, so that `settle_due` must repeat the call."""
        return self._due is not None

    def settle_due(self) -> None:
        """Finish the start of the broker if `settle` failed, for example because the disk was full.
        Raises StorageError."""
        if self._due is not None:
            boot_id, incarnation, family = self._due
            self.in_use(boot_id, incarnation)
            self.write_family(family)
            self.forget_accepted_losses()
            self._due = None

    def fail(self, error: StorageError) -> None:
        """Take the directory offline because its disk has failed. Mark the failure for the next
        start, if the disk permits."""
        self.failure = error
        # The mark is a renamed file, because the disk may have no space for a new one.
        with contextlib.suppress(StorageError, FileNotFoundError):
            if self._boot is not None:
                self._disk.rename(self._path(BOOT), self._path(FAILED))
                self._disk.sync_dir(self.path)

    def _finish_leftovers(self) -> None:
        """Remove the files of deleted topics, and log each unexpected entry."""
        for name in self._disk.list_dir(self.path):
            path = self._path(name)
            if is_deleted_directory(name):
                log.info("removing the files of a deleted partition path=%s", path)
                self._disk.remove_tree(path)
            elif name.endswith(TEMPORARY_SUFFIX):
                self._disk.unlink(path)
            elif is_stray_directory(name):
                log.warning("stray directory found, remove it if not needed path=%s", path)
            elif not (
                name in DIRECTORY_FILES
                or name in self._foreign_names
                or parse_partition_directory(name)
                or parse_future_directory(name)
            ):
                log.warning("unexpected file or directory is not used path=%s", path)

    def forget(self, partition: TopicPartition) -> None:
        """Remove the partition from all checkpoints of this directory. Raises StorageError."""
        self.lower(partition, None)

    def lower(self, partition: TopicPartition, offset: int | None) -> None:
        """Lower the partition's offset in all checkpoints to at most `offset`. With None, remove
        the partition from the checkpoints. Raises StorageError."""
        for checkpoint in self._checkpoints:
            checkpoint.lower(partition, offset)

    def forget_others(
        self, ends: Mapping[TopicPartition, int], anywhere: Container[TopicPartition]
    ) -> None:
        """Correct the checkpoints of this directory, after all logs were opened:

        - Partitions in `ends`: lower each offset to at most the one in `ends`.
        - Partitions not in `anywhere` (the partitions in any log directory), with a checkpointed
          high watermark above 0: keep the offsets, and record the partition in `missing`.
        - All other partitions: remove the offsets.

        Raises StorageError.
        """
        for partition, offset in self.high_watermarks.offsets.items():
            if partition not in anywhere and offset > 0:
                self.missing[partition] = offset
                log.error(
                    "partition directory missing partition=%s path=%s high_watermark_checkpoint=%d:"
                    " restore the directory and restart this broker, or delete the topic; if"
                    " another broker leads the partition, this broker copies it from that leader",
                    partition,
                    self.path,
                    offset,
                )
        for checkpoint in self._checkpoints:
            kept = {**dict.fromkeys(self.missing, sys.maxsize), **ends}
            offsets = checkpoint.offsets.items()
            checkpoint.write({k: min(value, kept[k]) for k, value in offsets if k in kept})

    def require_not_missing(self, partition: TopicPartition) -> None:
        """Raise BrokerError KAFKA_STORAGE_ERROR if the partition's directory has disappeared."""
        if partition in self.missing:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the directory of {partition} is missing from {self.path}, although the high"
                f" watermark checkpoint has offset {self.missing[partition]} for the partition:"
                " restore the directory, and restart this broker",
            )

    def give_up(self, partition: TopicPartition) -> None:
        """Forget a partition whose directory is missing: remove it from `missing` and from the
        checkpoints. Raises StorageError."""
        if self.missing.pop(partition, None) is not None:
            self.forget(partition)

    def end(self, broker_epoch: int) -> None:
        """Mark the directory as cleanly stopped. All logs must be durable and closed. Does nothing
        after a disk failure, or if `in_use` was not called."""
        if self.failure is None and self._boot is not None:
            # In this order: if the disk has no space for the mark, the boot id is still there.
            self._disk.replace(self._path(CLEAN_MARK), meta.encode_clean_mark(broker_epoch))
            self._disk.unlink(self._path(BOOT))
