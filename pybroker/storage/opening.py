"""Opens all logs at the start of a broker. Completes or undoes work that a kill interrupted, such
as moves between log directories."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping

from pybroker.errors import BrokerError, CorruptionError, StartupError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Disk, Rng
from pybroker.storage.directory import LogDirectory
from pybroker.storage.directory_set import DirectorySet
from pybroker.storage.filename import DELETED_DIRECTORY, MOVED_HERE, marked_directory
from pybroker.storage.loader import Known, Opened, open_log
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import LogOwner
from pybroker.storage.moves import counterpart, forget_move, prefer

log = logging.getLogger(__name__)


def is_suspect(home: LogDirectory) -> bool:
    """Return whether logs in the log directory `home` may lack records after a power loss or a disk
    failure."""
    # The files do not show this: a file may have its full size although unsynced records are lost.
    return not (home.was_clean or home.same_boot)


class Opening:
    """Opens all logs of a broker. Used once, at the start."""

    def __init__(
        self,
        directories: DirectorySet,
        disk: Disk,
        rng: Rng,
        *,
        owner_in: Callable[[LogDirectory], LogOwner],
        config_of: Callable[[str], LogConfig],
        now_ms: int,
    ) -> None:
        self._directories = directories
        self._disk = disk
        self._rng = rng
        self._owner_in = owner_in
        self._config_of = config_of
        self._now_ms = now_ms
        self.opened: dict[TopicPartition, Opened] = {}
        self.home: dict[TopicPartition, LogDirectory] = {}
        self.unfinished_moves: dict[TopicPartition, str] = {}
        """The partitions whose move was interrupted. The value is the log directory to which the
        log was being moved."""
        self.accepted_losses: set[TopicPartition] = set()
        """The partitions for which the operator accepts the loss of records."""
        self._accepted: set[str] = set()
        self.leftovers: list[str] = []
        """The paths of renamed directories, which can be removed."""

    def run(self, broker_id: int, cluster_id: str, boot_id: str, *, expects_data: bool) -> None:
        """Open all logs of the broker. `expects_data`: see `DirectorySet.settle`. Raises
        StorageError or StartupError. If one log directory is a copy of another, or a partition has
        two logs without an interrupted move, StartupError is raised before anything is written."""
        directories = self._directories
        ids, family = directories.settle(self._rng, expects_data=expects_data)
        found = self._find_partitions()
        self._accepted = directories.accepted()

        def take(directory: LogDirectory) -> None:
            directory.begin(broker_id, cluster_id, boot_id, ids[directory.path])
            directory.write_family(family)
            for partition, path in found[directory.path].items():
                self._open(partition, path, directory)

        def settle_down(directory: LogDirectory) -> None:
            here = [key for key, home in self.home.items() if home is directory]
            directory.forget_others({key: self._known_end(key) for key in here}, self.opened)
            self._drop_futures(directory)
            self._settle_moves(here)
            if not (here and is_suspect(directory)):
                directory.in_use(boot_id)
            # Otherwise `LogManager.record_incarnation` marks the directory once the suspect
            # replicas have stepped aside: after a kill the next start must find them again.

        for work in (take, settle_down):
            for directory in directories.usable():
                directories.attempt(directory, work)
                if directory.failure is not None:
                    self._leave(directory)
        if not (self.accepted_losses or directories.given_up):
            directories.forget_accepted()
        # Otherwise `LogManager.record_incarnation` removes the file once the replicas concerned
        # have stepped aside.

    def _find_partitions(self) -> Mapping[str, Mapping[TopicPartition, str]]:
        """Return log directory -> partition -> path of the partition's directory."""
        found: dict[str, dict[TopicPartition, str]] = {}
        where: dict[TopicPartition, str] = {}

        def look(directory: LogDirectory) -> None:
            found[directory.path] = dict(directory.partitions())
            for partition, path in found[directory.path].items():
                other = where.setdefault(partition, path)
                if other != path and not self._was_moved(other, path):
                    raise StartupError(
                        f"partition {partition} has two directories, {other} and {path}; move one"
                        " of them out of its log directory"
                    )

        for directory in self._directories.usable():
            self._directories.attempt(directory, look)
        return found

    def _was_moved(self, *paths: str) -> bool:
        return any(self._disk.exists(f"{path}/{MOVED_HERE}") for path in paths)

    def _open(self, partition: TopicPartition, path: str, directory: LogDirectory) -> None:
        high_watermark = directory.high_watermarks.offsets.get(partition, 0)
        accepts_loss = str(partition) in self._accepted
        opened = open_log(
            partition,
            path,
            self._config_of(partition.topic),
            self._disk,
            self._owner_in(directory),
            Known(
                clean=directory.was_clean,
                recovery_point=directory.recovery_points.offsets.get(partition),
                log_start_offset=directory.log_starts.offsets.get(partition),
                floor_offset=high_watermark if directory.same_boot else 0,
                same_boot=directory.same_boot,
                lost_power=directory.lost_power,
                accepts_loss=accepts_loss,
                may_be_in_memory_only=directory.has_failed,
            ),
            now_ms=self._now_ms,
        )
        if accepts_loss:
            end = opened.log.log_end_offset
            self._accept_loss(partition, opened.log)
            # Otherwise the next start would miss the records whose loss is accepted.
            directory.recovery_points.lower(partition, end)
            directory.high_watermarks.lower(partition, end)
        other = self.opened.get(partition)
        if other is not None:
            self._keep_one(partition, (other, self.home[partition]), (opened, directory))
            return
        self.opened[partition] = opened
        self.home[partition] = directory

    def _accept_loss(self, partition: TopicPartition, partition_log: Log) -> None:
        log.warning(
            "loss of records accepted by the operator partition=%s log_end=%d",
            partition,
            partition_log.log_end_offset,
        )
        self.accepted_losses.add(partition)

    def _known_end(self, partition: TopicPartition) -> int:
        """Return the upper limit for the partition's checkpointed offsets. A damaged log has no
        limit, because its log end offset leaves out the unreadable records."""
        log = self.opened[partition].log
        return sys.maxsize if log.damage is not None else log.log_end_offset

    def _keep_one(
        self,
        partition: TopicPartition,
        first: tuple[Opened, LogDirectory],
        second: tuple[Opened, LogDirectory],
    ) -> None:
        """If the broker was killed during a move, the partition has two logs. Keep one of them, and
        rename the directory of the other log."""
        try:
            kept, dropped = prefer(first[0].log, second[0].log, self._disk)
        except CorruptionError as error:
            raise StartupError(
                f"{error}; move one of the two partition directories out of its log directory"
            ) from error
        if kept is first[0].log:
            (self.opened[partition], self.home[partition]), (_, home) = first, second
        else:
            (self.opened[partition], self.home[partition]), (_, home) = second, first
        kept.advance_log_start(min(dropped.log_start_offset, kept.log_end_offset))
        dropped.release()
        if self._was_moved(dropped.directory):
            self.unfinished_moves[partition] = home.path
        self._set_aside(dropped.topic_partition, dropped.directory, home)
        forget_move(kept, self._disk)
        log.warning(
            "interrupted move settled partition=%s kept=%s kept_log_end=%d"
            " removed=%s removed_log_end=%d",
            partition,
            kept.directory,
            kept.log_end_offset,
            dropped.directory,
            dropped.log_end_offset,
        )

    def _settle_moves(self, partitions: Iterable[TopicPartition]) -> None:
        """Settle each interrupted move of which only one log was found. If the directory of the
        other log is offline or lost, close the log that was found: the other log may have newer
        records. If the operator has accepted the loss of that directory, keep the found log
        open."""
        directories = self._directories
        given_up = {*directories.given_up.values()}
        if len(directories.all) == 1 and not (directories.lost or given_up):
            return
        gone = {*directories.failed, *directories.lost.values()}
        for partition in partitions:
            partition_log = self.opened[partition].log
            other = counterpart(partition_log, self._disk)
            if other is None:
                continue
            if other in given_up:
                self._accept_loss(partition, partition_log)
                continue
            if other not in gone:
                forget_move(partition_log, self._disk)
                continue
            reason = (
                f"a move between log directories was interrupted, and the log in {other} "
                "may have newer records"
            )
            log.error(
                "log not served partition=%s path=%s: %s",
                partition,
                partition_log.directory,
                reason,
            )
            try:
                if partition_log.damage is None:
                    partition_log.flush()
                partition_log.close()
            except BrokerError as error:
                raise StorageError(str(error)) from error
            partition_log.release(reason)

    def _drop_futures(self, directory: LogDirectory) -> None:
        """Remove the copies of unfinished moves from this log directory. Keep a copy if this broker
        does not have the original."""
        for partition, path in directory.futures():
            if partition not in self.opened:
                log.warning("copy of a move is kept, the original is missing path=%s", path)
                continue
            self._set_aside(partition, path, directory)
            if self.home[partition] is not directory:
                self.unfinished_moves[partition] = directory.path

    def _set_aside(self, partition: TopicPartition, path: str, directory: LogDirectory) -> None:
        unique = uuid.UUID(bytes=self._rng.randbytes(16))
        name = marked_directory(partition, unique, DELETED_DIRECTORY)
        self._disk.rename(path, f"{directory.path}/{name}")
        self._disk.sync_dir(directory.path)
        self.leftovers.append(f"{directory.path}/{name}")

    def _leave(self, directory: LogDirectory) -> None:
        """Close the logs in this log directory, which is offline."""
        for partition in [key for key, home in self.home.items() if home is directory]:
            self.opened.pop(partition).log.release()
            del self.home[partition]
