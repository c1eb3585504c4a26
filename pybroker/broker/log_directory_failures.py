"""Failures of log directories. The broker notifies the controller of each failure. When the broker
starts, it looks for replicas that may lack records."""

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


async def is_in_any_isr(coord: Coord, broker_id: int) -> bool:
    """Return whether this broker is in the ISR or the eligible replicas (KIP-966) of at least one
    partition. Raise CoordError."""
    states, _ = await read_states(coord, await _assigned(coord, broker_id))
    return any(broker_id in (*node.state.isr, *node.state.eligible) for node in states.values())


async def read_accepted_losses(
    coord: Coord, broker_id: int, logs: LogManager
) -> dict[TopicPartition, Left]:
    """Return the replicas of this broker whose loss of records the operator has accepted. Each
    replica has its log end offset and its checkpointed high watermark (both 0 without a log). The
    caller has to remove these replicas from the ISR and from the eligible replicas (KIP-966). Raise
    CoordError."""
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
    """Return the partitions assigned to this broker whose logs a power loss may have removed. The
    result is empty while a log directory is failed or missing, because that directory may have the
    logs. Raises CoordError."""
    if not logs.may_lack_logs or logs.failed_directories or logs.lost_directories:
        return {}
    assigned = await _assigned(coord, broker_id)
    return {key: Left(0, 0) for key in assigned if logs.log(key) is None}


async def _assigned(coord: Coord, broker_id: int) -> dict[TopicPartition, Sequence[int]]:
    """Return the partitions assigned to the broker `broker_id`, each with the ids of all brokers
    that have a replica. Raise CoordError."""
    topics, _ = await read_topics(coord, await read_topic_names(coord))
    return {
        TopicPartition(name, number): replicas
        for name, topic in topics.items()
        for number, replicas in topic.assignment.replicas.items()
        if broker_id in replicas
    }


class DirectoryFailures:
    """Takes the replicas of a failed log directory out of service, and notifies the controller.
    Calls `lost` with the reason when no usable directory remains."""

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
        """Notify the controller of failed log directories, and of replicas that should not lead.
        Call this method after each registration: the controller forgets earlier notifications."""
        if self._logs.failed_directories or self._logs.lost_directories:
            self._queue(LogDirEvent.DIRECTORY_FAILED)
        if self._replicas.leadership_yield.reasons:
            self.replicas_changed()

    def replicas_changed(self) -> None:
        """Notify the controller that some replicas of this broker have left the ISR or should no
        longer lead. The notification does not name the replicas."""
        self._queue(LogDirEvent.REPLICAS_CHANGED)

    def _queue(self, event: LogDirEvent) -> None:
        self._unsent.add(event)
        self._loop.wake()

    async def stop(self) -> None:
        """Stop sending notifications. Idempotent."""
        await self._loop.stop()

    def _on_failure(self, path: str, error: StorageError) -> None:
        self._replicas.directory_failed(path, error)
        self._end_without_any(error)
        self._queue(LogDirEvent.DIRECTORY_FAILED)

    def _end_without_any(self, error: StorageError) -> None:
        if not self._logs.usable_directories:
            self._lost(f"all log directories have failed; the last one failed with: {error}")

    async def _send(self) -> bool:
        """Send the queued events. Return True if an event could not be sent. The caller then tries
        again."""
        for event in list(self._unsent):
            self._unsent.discard(event)
            try:
                content = schemas.encode_log_dir_event(self._broker_id, event)
                await self._coord.create(paths.LOG_DIR_EVENT_PREFIX, content, sequence=True)
            except CoordError as error:
                log.warning(
                    "controller not notified yet, trying again event=%s error=%r", event.name, error
                )
                self._unsent.add(event)
        return bool(self._unsent)
