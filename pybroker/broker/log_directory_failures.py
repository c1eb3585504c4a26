"""Log directory failures: a broker notifies the controller of a failed directory, and reads in
ZooKeeper whether an empty directory has lost partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from pybroker.background import RetryLoop, on_this_loop
from pybroker.coordinator.controller.reading import read_states, read_topic_names, read_topics
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import LogDirEvent
from pybroker.errors import CoordError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Coord
from pybroker.replication.health.power_loss import Left, left_of
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


async def has_had_partitions(coord: Coord, broker_id: int) -> bool:
    """Return whether this broker is in the ISR or among the eligible replicas of a partition. Then
    the cluster relies on its committed records and may elect it. Raise CoordError."""
    states, _ = await read_states(coord, await _assigned(coord, broker_id))
    return any(broker_id in (*node.state.isr, *node.state.eligible) for node in states.values())


async def read_accepted_losses(
    coord: Coord, broker_id: int, logs: LogManager
) -> dict[TopicPartition, Left]:
    """Return the replicas whose loss of records the operator has accepted, and how much is left of
    each. The loss is that of a directory, or of the records behind a corrupt range. These replicas
    must not be elected, or the followers would truncate their logs. Raise CoordError."""
    cut = left_of(logs, logs.accepted_losses)
    if not logs.gave_up:
        return cut
    may_come_back = bool(logs.failed_directories or logs.lost_directories)
    return cut | {
        key: Left(0, 0)
        for key, replicas in (await _assigned(coord, broker_id)).items()
        if logs.log(key) is None and not (may_come_back and len(replicas) == 1)
    }


async def vanished(coord: Coord, broker_id: int, logs: LogManager) -> dict[TopicPartition, Left]:
    """Return the assigned partitions whose logs are missing on this broker after a power loss.
    Before the first sync, a power loss may remove even the directory of a partition. While a log
    directory is failed or lost, it may hold the missing logs, so the result is empty. Raise
    CoordError."""
    if not logs.may_lack_logs or logs.failed_directories or logs.lost_directories:
        return {}
    assigned = await _assigned(coord, broker_id)
    return {key: Left(0, 0) for key in assigned if logs.log(key) is None}


async def _assigned(coord: Coord, broker_id: int) -> dict[TopicPartition, Sequence[int]]:
    """Return the partitions that have a replica on that broker, each with the ids of all its
    replicas."""
    topics, _ = await read_topics(coord, await read_topic_names(coord))
    return {
        TopicPartition(name, number): replicas
        for name, topic in topics.items()
        for number, replicas in topic.assignment.replicas.items()
        if broker_id in replicas
    }


class DirectoryFailures:
    """Takes the replicas of a failed directory out of service, and notifies the controller through
    `/log_dir_event_notification`, between `start` and `stop`. It also notifies the controller of
    directories that are missing at the start, and of replicas that should not lead. It calls `lost`
    when no usable directory remains."""

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
        self._unsent: set[LogDirEvent] = set()
        self._loop = RetryLoop("log-dir-events", self._send, _RETRY_S)

    def start(self) -> None:
        self._loop.start()
        self._logs.listen(on_this_loop(self._on_failure))
        self._replicas.leadership_yield.on_change = self.replicas_changed
        for path, error in self._logs.failed_directories.items():
            self._replicas.directory_failed(path, error)
            self._end_without_any(error)
        self.registered()

    def registered(self) -> None:
        """Notify the controller after a registration: it does not know the failed directories of a
        broker that has just registered."""
        if self._logs.failed_directories or self._logs.lost_directories:
            self._queue(LogDirEvent.DIRECTORY_FAILED)
        if self._replicas.leadership_yield.reasons:
            self.replicas_changed()

    def replicas_changed(self) -> None:
        """Notify the controller that replicas of this broker should not lead, or have left the
        ISR."""
        self._queue(LogDirEvent.REPLICAS_CHANGED)

    def _queue(self, event: LogDirEvent) -> None:
        self._unsent.add(event)
        self._loop.wake()

    async def stop(self) -> None:
        """Stop the notifications. Idempotent."""
        await self._loop.stop()

    def _on_failure(self, path: str, error: StorageError) -> None:
        self._replicas.directory_failed(path, error)
        self._end_without_any(error)
        self._queue(LogDirEvent.DIRECTORY_FAILED)

    def _end_without_any(self, error: StorageError) -> None:
        if not self._logs.usable_directories:
            self._lost(f"all log directories have failed; the error of the last one: {error}")

    async def _send(self) -> bool:
        """Create a notification node for each kind of event. A node covers all directories, or all
        replicas, of this broker. Return whether an event remains to be sent."""
        for event in list(self._unsent):
            self._unsent.discard(event)
            try:
                content = schemas.encode_log_dir_event(self._broker_id, event)
                await self._coord.create(paths.LOG_DIR_EVENT_PREFIX, content, sequence=True)
            except CoordError as error:
                log.warning(
                    "controller not notified, retrying event=%s error=%r", event.name, error
                )
                self._unsent.add(event)
        return bool(self._unsent)
