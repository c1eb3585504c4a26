"""The moves of all replicas between the log directories of a broker: which are under way, when a
copy replaces a log, and what happens to both. `moves.py` has the steps of one move; replication
requests moves and runs the steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.storage.directory import LogDirectory
from pybroker.storage.filename import DELETED_DIRECTORY, FUTURE_DIRECTORY, STRAY_DIRECTORY
from pybroker.storage.log_parts import LogOwner
from pybroker.storage.log_table import LogTable
from pybroker.storage.moves import ReplicaMove, forget_move

log = logging.getLogger(__name__)

WISHES_MAX: Final = 10_000
"""A client may request directories for partitions that are never created; a further request drops
the oldest."""


class Relocations:
    """Invariant: a partition has at most one move."""

    def __init__(
        self,
        table: LogTable,
        clock: Clock,
        *,
        owner_in: Callable[[LogDirectory], LogOwner],
        checkpoint: Callable[[LogDirectory, Mapping[TopicPartition, int]], None],
    ) -> None:
        self._table = table
        self._clock = clock
        self._owner_in = owner_in
        self._checkpoint = checkpoint
        self._moves: dict[TopicPartition, ReplicaMove] = {}
        self._wishes: dict[TopicPartition, LogDirectory] = {}
        self.unfinished: dict[TopicPartition, str] = {}
        """The targets of moves that were under way when the last broker ended; their copies are
        dropped."""

    @property
    def current(self) -> Mapping[TopicPartition, ReplicaMove]:
        return self._moves

    # -- where a partition shall be

    def wish(self, partition: TopicPartition, path: str) -> None:
        """Create the partition in that directory if it is created later. Raises BrokerError
        LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR if the directory is offline."""
        directory = self._target(path)
        if partition not in self._table.logs:
            self._wishes.pop(partition, None)
            while len(self._wishes) >= WISHES_MAX:
                del self._wishes[next(iter(self._wishes))]
            self._wishes[partition] = directory

    def wish_for(self, partition: TopicPartition) -> LogDirectory | None:
        """Return the requested directory of a partition that is created now, and forget the
        request."""
        return self._wishes.pop(partition, None)

    def _target(self, path: str) -> LogDirectory:
        directory = self._table.directories.find(path)
        if directory is None:
            raise BrokerError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs")
        if directory.failure is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline")
        return directory

    # -- moving

    def begin(self, partition: TopicPartition, path: str) -> ReplicaMove | None:
        """Begin to copy the partition to that directory; None if it is there already. The partition
        must have a log and no other move. Waits for the disk.

        Raises BrokerError as `wish`; KAFKA_STORAGE_ERROR also if the log cannot be used or any
        directory is missing, because that may hold a copy, too; StorageError.
        """
        table = self._table
        target = self._target(path)
        source = table.logs.get(partition)
        if source is None:
            raise BrokerError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"{partition} is no longer on this broker"
            )
        if table.home[partition] is target:
            return None
        absence = table.directories.absence(replaced=True)
        if source.damage is not None:
            raise source.damage.as_error(partition)
        if source.failure is not None or absence is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(source.failure or absence))
        move = ReplicaMove(source, target, table.disk, self._owner_in(target), self._clock)
        self._moves[partition] = move
        try:
            with table.lock:
                target.forget(partition)
            move.prepare(table.unique())
        except (BrokerError, StorageError):
            self._abandon(move)
            raise
        log.info("move begun partition=%s to=%s", partition, target.path)
        return move

    def swap(self, move: ReplicaMove) -> bool:
        """On the event loop: let the copy replace the log if it lacks nothing. Return whether it
        did. Never waits."""
        table, partition = self._table, move.topic_partition
        if not table.lock.acquire(blocking=False):
            return False
        try:
            if table.logs.get(partition) is not move.source or not move.catch_up():
                return False
            table.logs[partition] = move.log
            table.home[partition] = move.target
            return True
        finally:
            table.lock.release()

    def finish(self, move: ReplicaMove, origin: str, high_watermark: int) -> None:
        """After the swap: make the copy durable, then remove the old directory in `origin`. Waits
        for the disk. Raises BrokerError, StorageError: then the old one is kept under another name,
        because it is older than the copy and must not be served."""
        table, partition, old = self._table, move.topic_partition, move.source
        directory = table.directories.find(origin)
        assert directory is not None
        path = old.directory
        try:
            move.make_durable()
            with table.lock:
                self._checkpoint(move.target, {partition: high_watermark})
                path = table.rename_away(old, directory, DELETED_DIRECTORY)
                self._checkpoint(directory, {})
            move.forget_origin()
        except (BrokerError, StorageError):
            deleted = table.logs.get(partition) is not move.log
            if table.disk.exists(old.directory):
                purpose = DELETED_DIRECTORY if deleted else STRAY_DIRECTORY
                path = table.rename_away(old, directory, purpose)
            if not deleted:
                move.forget_origin()
                raise
        finally:
            if self._moves.get(partition) is move:
                del self._moves[partition]
            old.release()
        table.deleted.add(self._clock.wall_ms() + old.config.file_delete_delay_ms, path)
        log.info("move done partition=%s from=%s to=%s", partition, origin, move.target.path)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Prepare for a truncation of the partition's log at `offset`. Waits for the disk. Raises
        BrokerError KAFKA_STORAGE_ERROR; then the log must not be truncated now."""
        move = self._moves.get(partition)
        if move is not None:
            move.lower(offset)

    # -- giving up

    def settle(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove the marks of moves whose copies are given up or never existed. Waits for the
        disk."""
        for partition in partitions:
            partition_log = self._table.logs.get(partition)
            try:
                if partition_log is not None:
                    forget_move(partition_log, self._table.disk)
            except StorageError as error:
                log.warning("marks of a move not removed partition=%s error=%s", partition, error)

    def cancel(self, partition: TopicPartition) -> None:
        """Cancel the partition's move and its requested directory, and drop the copy unless it has
        replaced the log. No error if there is none. Waits for the disk."""
        self._wishes.pop(partition, None)
        self.unfinished.pop(partition, None)
        move = self._moves.get(partition)
        if move is not None and not move.done:
            self._abandon(move)

    def cancel_all(self) -> None:
        """At shutdown: stop all moves. The copies stay, as the sign that the next start shall
        continue."""
        for move in self._moves.values():
            directory = None if move.done else move.abandon()
            if directory is None or directory.endswith(f"-{FUTURE_DIRECTORY}"):
                continue
            try:
                self._table.rename_away(move.log, move.target, FUTURE_DIRECTORY)
            except StorageError as error:
                log.warning("copy not renamed path=%s error=%s", directory, error)
        self._moves.clear()

    def directory_failed(
        self, directory: LogDirectory, partitions: Container[TopicPartition]
    ) -> None:
        """End the moves from or to a directory that has failed; their copies are left as they
        are."""
        for move in list(self._moves.values()):
            if move.target is directory or move.topic_partition in partitions:
                move.cancel()

    def abandon(self, move: ReplicaMove) -> None:
        """Cancel this move, as `cancel` does. Waits for the disk."""
        if not move.done:
            self._abandon(move)

    def _abandon(self, move: ReplicaMove) -> None:
        directory = move.abandon()
        if self._moves.get(move.topic_partition) is move:
            del self._moves[move.topic_partition]
        if directory is None or move.target.failure is not None:
            return
        try:
            path = self._table.rename_away(move.log, move.target, DELETED_DIRECTORY)
        except StorageError as error:
            log.warning("copy not removed path=%s error=%s", directory, error)
        else:
            self._table.deleted.add(0, path)
