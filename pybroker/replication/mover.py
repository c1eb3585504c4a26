"""Moves replicas between the log directories of this broker (KIP-113) while the broker serves the
replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker.background import BackgroundTask
from pybroker.errors import BrokerError, ErrorCode, PybrokerError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Blocking
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.filename import can_have_future
from pybroker.storage.manager import LogManager
from pybroker.storage.moves import MoveCancelled, ReplicaMove

log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.001
"""The pause before the next attempt to replace the log by its copy."""
_PARTITIONS_A_TURN: Final = 200
"""After this many partitions a request lets other tasks of the event loop run."""


class DirectoryUsage(NamedTuple):
    """The space that one replica uses: an entry of a DescribeLogDirs response. `offset_lag` is the
    lag behind the high watermark in offsets, -1 if unknown. `is_future`: the replica is a copy that
    a move writes. The lag of a copy is the lag behind the original."""

    directory: str
    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


class ReplicaMover:
    """Moves replicas to other log directories. The moves run from `start` until `stop`."""

    def __init__(self, *, logs: LogManager, replicas: ReplicaManager, blocking: Blocking) -> None:
        self._logs = logs
        self._replicas = replicas
        self._blocking = blocking
        self._changes = asyncio.Lock()
        self._turn = asyncio.Semaphore(1)
        self._resuming = BackgroundTask("resume-moves")
        self._tasks: dict[asyncio.Task[None], ReplicaMove | None] = {}
        """Task -> the move that it executes; None for a task that handles a client's request."""

    def start(self) -> None:
        """Resume the moves that this broker had not finished when it stopped."""
        self._resuming.start(self._resume)

    async def stop(self) -> None:
        """Interrupt all moves. The next start of the broker resumes them. Idempotent."""
        await self._resuming.stop()
        tasks = list(self._tasks)
        for task, move in self._tasks.items():
            if move is None:
                task.cancel()
            elif not move.done:
                move.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _resume(self) -> None:
        for partition, directory in sorted(self._logs.moves.unfinished.items()):
            try:
                async with self._changes:
                    if self._logs.moves.unfinished.pop(partition, None) is None:
                        continue  # the replica was deleted, or a client chose another directory
                    log.info(
                        "unfinished move begins again partition=%s to=%s", partition, directory
                    )
                    await self._move(partition, directory)
            except (BrokerError, StorageError) as error:
                log.error(
                    "unfinished move not possible partition=%s error=%s: the replica stays in its"
                    " log directory",
                    partition,
                    error,
                )

    # -- requests

    @property
    def directories(self) -> Sequence[str]:
        """The paths of all log directories."""
        return self._logs.directories

    @property
    def failed_directories(self) -> Mapping[str, StorageError]:
        """Path of each offline log directory -> the error."""
        return self._logs.failed_directories

    async def alter(
        self, wanted: Mapping[TopicPartition, str], exists: Callable[[TopicPartition], bool]
    ) -> Mapping[TopicPartition, BrokerError | None]:
        """Begin to move each replica to the log directory in `wanted`. A replica that this broker
        gets only later is created in the wanted directory. `exists` returns whether the cluster has
        a partition.

        Return partition -> error; None without an error. The errors: LOG_DIR_NOT_FOUND,
        KAFKA_STORAGE_ERROR, INVALID_TOPIC_EXCEPTION (topic name too long for a future directory),
        REPLICA_NOT_AVAILABLE (no replica on this broker), UNKNOWN_TOPIC_OR_PARTITION.
        """
        errors: dict[TopicPartition, BrokerError | None] = {}
        # A disconnecting client cancels its request, but a move that has begun needs its task.
        await asyncio.shield(self._spawn(self._alter_all(wanted, exists, errors), None))
        return errors

    async def _alter_all(
        self,
        wanted: Mapping[TopicPartition, str],
        exists: Callable[[TopicPartition], bool],
        errors: dict[TopicPartition, BrokerError | None],
    ) -> None:
        # The lock is held for the whole request. Otherwise the rest of a slow request would replace
        # moves that a later request has begun.
        async with self._changes:
            for number, (partition, directory) in enumerate(wanted.items(), 1):
                if number % _PARTITIONS_A_TURN == 0:
                    await asyncio.sleep(0)
                try:
                    await self._alter(partition, directory, exists)
                    errors[partition] = None
                except BrokerError as error:
                    errors[partition] = error

    async def _alter(
        self, partition: TopicPartition, directory: str, exists: Callable[[TopicPartition], bool]
    ) -> None:
        if not can_have_future(partition):
            raise BrokerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{partition} cannot be moved: the topic name is too long for a -future directory",
            )
        moves = self._logs.moves
        moves.request_directory(partition, directory)
        current = self._logs.log(partition)
        if current is not None and current.failure is not None:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{partition} cannot be moved: its log directory is offline",
            )
        if current is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if exists(partition):
                code = ErrorCode.REPLICA_NOT_AVAILABLE
            raise BrokerError(
                code, f"broker {self._replicas.broker_id} has no replica of {partition}"
            )
        move = moves.current.get(partition)
        if move is not None and move.target.path == directory.rstrip("/"):
            return
        await self._blocking.run(moves.cancel, partition)
        if move is not None:
            await self._finished(move)
        try:
            await self._move(partition, directory)
        except StorageError as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def usage(self) -> list[DirectoryUsage]:
        """Return the disk usage of each replica of this broker, and of each future replica."""
        rows = []
        high_watermarks = self._replicas.high_watermarks()
        for partition, current in self._logs.all().items():
            lag = -1
            high_watermark = high_watermarks.get(partition)
            home = self._logs.home(partition)
            if home is None:
                continue
            if high_watermark is not None:
                lag = max(high_watermark - current.log_end_offset, 0)
            rows.append(DirectoryUsage(home, partition, current.size_bytes, lag, False))
        for partition, move in list(self._logs.moves.current.items()):  # threads change it
            if not move.done:
                size_bytes, end = move.copied
                lag = max(move.source.log_end_offset - end, 0)
                rows.append(DirectoryUsage(move.target.path, partition, size_bytes, lag, True))
        return rows

    # -- moving

    async def _finished(self, move: ReplicaMove) -> None:
        """If the copy of `move` has already replaced the log, wait for the removal of the old log.
        Otherwise return at once."""
        tasks = [task for task, carried_out in self._tasks.items() if carried_out is move]
        if move.done and tasks:
            await asyncio.wait(tasks)

    async def _move(self, partition: TopicPartition, directory: str) -> None:
        move = await self._blocking.run(self._logs.moves.begin, partition, directory)
        if move is not None:
            self._spawn(self._carry_out(move), move)

    async def _carry_out(self, move: ReplicaMove) -> None:
        moves, partition = self._logs.moves, move.topic_partition
        try:
            while not await self._slice(move):
                pass
            await self._blocking.run(move.rename)
            origin = self._logs.home(partition)
            while origin is not None and not self._replicas.swap(move):
                if await self._slice(move):
                    await asyncio.sleep(_PAUSE_S)
            if origin is not None:
                await self._blocking.run(
                    moves.finish, move, origin, self._replicas.high_watermarks().get(partition, 0)
                )
        except MoveCancelled:
            log.info("move cancelled partition=%s to=%s", partition, move.target.path)
            await self._blocking.run(move.stay)
        except PybrokerError as error:
            log.error(
                "move failed partition=%s to=%s error=%s: the broker deletes the copy",
                partition,
                move.target.path,
                error,
            )
            await self._blocking.run(moves.abandon, move)

    async def _slice(self, move: ReplicaMove) -> bool:
        async with self._turn:
            return await self._blocking.run(move.copy)

    def _spawn(
        self, work: Coroutine[None, None, None], move: ReplicaMove | None
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="move-replica")
        self._tasks[task] = move
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()
