"""Begins, finishes and cancels the moves of replicas between the log directories of a broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.storage.directory import LogDirectory
from pybroker.storage.filename import (
    DELETED_DIRECTORY,
    FUTURE_DIRECTORY,
    INCOMPLETE,
    STRAY_DIRECTORY,
)
from pybroker.storage.log_parts import LogOwner
from pybroker.storage.log_table import LogTable
from pybroker.storage.moves import ReplicaMove, forget_move
from pybroker.storage.replica_health import Health, ReplicaHealth

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 10_000
"""The largest number of partitions without a log for which a client has requested a log directory.
A further request replaces the oldest one."""


class Relocations:
    """The running moves of logs between log directories, and the requested log directories of
    partitions without a log. Invariant: a partition has at most one move."""

    def __init__(
        self,
        table: LogTable,
        clock: Clock,
        *,
        owner_in: Callable[[LogDirectory], LogOwner],
        checkpoint: Callable[[LogDirectory, Mapping[TopicPartition, int]], None],
        health: ReplicaHealth,
    ) -> None:
        self._table = table
        self._clock = clock
        self._owner_in = owner_in
        self._checkpoint = checkpoint
        self._health = health
        self._moves: dict[TopicPartition, ReplicaMove] = {}
        self._requested: dict[TopicPartition, LogDirectory] = {}
        self.unfinished: dict[TopicPartition, str] = {}
        """The partitions whose move was unfinished when the broker last stopped. The value is the
        log directory that was to get the log. The broker has removed the copies at its start, and
        begins these moves again."""

    @property
    def current(self) -> Mapping[TopicPartition, ReplicaMove]:
        return self._moves

    # -- requested directories

    def request_directory(self, partition: TopicPartition, path: str) -> None:
        """If the partition has no log yet, record that a client wants the log in the log directory
        `path`. Raises BrokerError LOG_DIR_NOT_FOUND if `path` is not in log.dirs;
        KAFKA_STORAGE_ERROR if the directory is offline."""
        directory = self._target(path)
        if partition not in self._table.logs:
            self._requested.pop(partition, None)
            while len(self._requested) >= REQUESTS_MAX:
                del self._requested[next(iter(self._requested))]
            self._requested[partition] = directory

    def take_request(self, partition: TopicPartition) -> LogDirectory | None:
        """Return the log directory that a client has requested for the partition, and forget the
        request. Return None if there is no request."""
        return self._requested.pop(partition, None)

    def _target(self, path: str) -> LogDirectory:
        directory = self._table.directories.find(path)
        if directory is None:
            raise BrokerError(
                ErrorCode.LOG_DIR_NOT_FOUND,
                f"the directory {path} is not in log.dirs of this broker",
            )
        if directory.failure is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline")
        return directory

    # -- moving

    def begin(self, partition: TopicPartition, path: str) -> ReplicaMove | None:
        """Begin the partition's move to the log directory `path`. Return None if the log is already
        there. The partition must have no other move. Waits for the disk.

        Raises StorageError, the errors of `request_directory`, and BrokerError:

        - REPLICA_NOT_AVAILABLE: the partition has no log.
        - KAFKA_STORAGE_ERROR: the log is unusable, or any log directory of the broker is offline or
          lost.
        """
        table = self._table
        target = self._target(path)
        source = table.logs.get(partition)
        if source is None:
            raise BrokerError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"this broker has no replica of {partition}"
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
        """Replace a log by its copy. Return False if the caller must try again. Call this on the
        event loop; it never waits."""
        table, partition = self._table, move.topic_partition
        if not table.lock.acquire(blocking=False):
            return False
        try:
            if table.logs.get(partition) is not move.source or not move.catch_up():
                return False
            table.logs[partition] = move.log
            table.home[partition] = move.target
            move.log.changes.note(partition)
            return True
        finally:
            table.lock.release()

    def finish(self, move: ReplicaMove, origin: str, high_watermark: int) -> None:
        """Complete a move after `swap`: make the copy durable, and remove the old log from the log
        directory `origin`. Waits for the disk. Raises BrokerError, StorageError. After an error, an
        old log that was not yet renamed for deletion is kept in a directory `*-stray`."""
        table, partition, old = self._table, move.topic_partition, move.source
        directory = table.directories.find(origin)
        assert directory is not None
        path = old.directory
        try:
            if self._health[partition] is Health.WHOLE:  # it may have become complete meanwhile
                table.disk.unlink(f"{move.log.directory}/{INCOMPLETE}")
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
        """Prepare the partition's move to another log directory, if any, for a truncation of the
        log to `offset`. Waits for the disk. If the disk fails or is full, raises BrokerError
        KAFKA_STORAGE_ERROR. The caller must then not truncate the log."""
        move = self._moves.get(partition)
        if move is not None:
            move.lower(offset)

    # -- cancelling

    def settle(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove the files that mark interrupted moves of these partitions, because the operator
        has accepted the loss of the partitions' records. Waits for the disk."""
        for partition in partitions:
            partition_log = self._table.logs.get(partition)
            try:
                if partition_log is not None:
                    forget_move(partition_log, self._table.disk)
            except StorageError as error:
                log.warning(
                    "files that mark a move not removed partition=%s error=%s", partition, error
                )

    def cancel(self, partition: TopicPartition) -> None:
        """Cancel the partition's move and its request for a log directory, if any. Remove the copy
        unless it has replaced the log. Waits for the disk."""
        self._requested.pop(partition, None)
        self.unfinished.pop(partition, None)
        move = self._moves.get(partition)
        if move is not None and not move.done:
            self._abandon(move)

    def cancel_all(self) -> None:
        """Stop all moves at the shutdown of the broker. The copies stay on the disk for the next
        start."""
        for move in self._moves.values():
            directory = None if move.done else move.abandon()
            if directory is None or directory.endswith(f"-{FUTURE_DIRECTORY}"):
                continue
            try:
                self._table.rename_away(move.log, move.target, FUTURE_DIRECTORY)
            except StorageError as error:
                log.warning("copy of a stopped move not renamed path=%s error=%s", directory, error)
        self._moves.clear()

    def directory_failed(
        self, directory: LogDirectory, partitions: Container[TopicPartition]
    ) -> None:
        """Cancel the moves from or to the failed log directory. `partitions` are those whose log in
        use is in `directory`. The files that the moves have copied stay on the disk."""
        for move in list(self._moves.values()):
            if move.target is directory or move.topic_partition in partitions:
                move.cancel()

    def abandon(self, move: ReplicaMove) -> None:
        """If the copy has replaced the log, do nothing. Otherwise cancel the move and remove the
        copy. Waits for the disk."""
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
            log.warning("copy of a cancelled move not removed path=%s error=%s", directory, error)
        else:
            self._table.deleted.add(0, path)
