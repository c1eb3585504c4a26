"""What the rest of a broker, and of the cluster, has to do with its log directories: hearing that
one has failed, and telling whether an empty one should have held something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.controller.reading import read_states, read_topic_names, read_topics
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import LogDirEvent
from pybroker.errors import CoordError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Coord
from pybroker.replication.health.power_loss import Left
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


async def has_had_partitions(coord: Coord, broker_id: int) -> bool:
    """Whether the cluster believes that this broker holds all that was committed of some partition:
    then it may be elected to lead it. Raises CoordError."""
    states, _ = await read_states(coord, await _assigned(coord, broker_id))
    return any(broker_id in (*node.state.isr, *node.state.eligible) for node in states.values())


async def given_up(coord: Coord, broker_id: int, logs: LogManager) -> dict[TopicPartition, Left]:
    """What this broker had of which partitions, and has no more since the operator accepted the
    loss of a directory, or of what lies behind a hole: it must not be elected for it, or the others
    would cut their logs. Raises CoordError."""
    cut = {
        key: Left(found.log_end_offset, logs.high_watermark_checkpoint(key))
        for key in logs.accepted_losses
        if (found := logs.log(key)) is not None
    }
    if not logs.gave_up:
        return cut
    may_come_back = bool(logs.failed_directories or logs.lost_directories)
    return cut | {
        key: Left(0, 0)
        for key, replicas in (await _assigned(coord, broker_id)).items()
        if logs.log(key) is None and not (may_come_back and len(replicas) == 1)
    }


async def vanished(coord: Coord, broker_id: int, logs: LogManager) -> dict[TopicPartition, Left]:
    """What this broker is to have, and of which its disks hold no trace since the machine went
    down: where nothing was synced yet, not even the directory needs to have outlived that. What may
    be in a directory that is away is not made anew, and waits for it. Raises CoordError."""
    if not logs.may_lack_logs or logs.failed_directories or logs.lost_directories:
        return {}
    assigned = await _assigned(coord, broker_id)
    return {key: Left(0, 0) for key in assigned if logs.log(key) is None}


async def _assigned(coord: Coord, broker_id: int) -> dict[TopicPartition, Sequence[int]]:
    """The partitions of which that broker is to have a replica, with all that have one."""
    topics, _ = await read_topics(coord, await read_topic_names(coord))
    return {
        TopicPartition(name, number): replicas
        for name, topic in topics.items()
        for number, replicas in topic.assignment.replicas.items()
        if broker_id in replicas
    }


class DirectoryFailures:
    """Between `start` and `stop`: takes the replicas of a failed directory out of service and tells
    the controller (`/log_dir_event_notification`), also of directories that were not there at the
    start, and of replicas that would rather not lead. `lost` is told when no directory is left:
    then there is nothing to serve."""

    def __init__(
        self,
        *,
        coord: Coord,
        broker_id: int,
        logs: LogManager,
        replicas: ReplicaManager,
        lost: Callable[[str], None],
    ) -> None:
        self._coord = coord
        self._broker_id = broker_id
        self._logs = logs
        self._replicas = replicas
        self._lost = lost
        self._untold: set[LogDirEvent] = set()
        self._wake = asyncio.Event()
        self._task = BackgroundTask("log-dir-events")

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task.start(self._tell)

        def listen(path: str, error: StorageError) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._on_failure, path, error)

        self._logs.listen(listen)
        self._replicas.leadership_yield.on_change = self.replicas_changed
        for path, error in self._logs.failed_directories.items():
            self._replicas.directory_failed(path, error)
            self._end_without_any(error)
        self.registered()

    def registered(self) -> None:
        """The broker stands in ZooKeeper, for the first time or again: the controller knows nothing
        of its directories."""
        if self._logs.failed_directories or self._logs.lost_directories:
            self._say(LogDirEvent.DIRECTORY_FAILED)
        if self._replicas.leadership_yield.reasons:
            self.replicas_changed()

    def replicas_changed(self) -> None:
        """Replicas here would rather not lead, or have stepped aside by themselves."""
        self._say(LogDirEvent.REPLICAS_CHANGED)

    def _say(self, event: LogDirEvent) -> None:
        self._untold.add(event)
        self._wake.set()

    async def stop(self) -> None:
        """Idempotent."""
        await self._task.stop()

    def _on_failure(self, path: str, error: StorageError) -> None:
        self._replicas.directory_failed(path, error)
        self._end_without_any(error)
        self._say(LogDirEvent.DIRECTORY_FAILED)

    def _end_without_any(self, error: StorageError) -> None:
        if not self._logs.usable_directories:
            self._lost(f"all log directories have failed, the last: {error}")

    async def _tell(self) -> None:
        """One node says it of all directories that have failed, or all replicas, by then."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._untold:
                event = self._untold.pop()
                try:
                    content = schemas.encode_log_dir_event(self._broker_id, event)
                    await self._coord.create(paths.LOG_DIR_EVENT_PREFIX, content, sequence=True)
                except CoordError as error:
                    log.warning("%s not told, trying again error=%r", event.name, error)
                    self._untold.add(event)
                    await asyncio.sleep(_RETRY_S)
