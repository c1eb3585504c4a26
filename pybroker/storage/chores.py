"""What is done to all logs from time to time: flushing what is quiet, deleting what is old, and
telling (not too often) what the disk refused. Which logs there are is the manager's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from pybroker.errors import BrokerError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.storage.log import Log

_logger = logging.getLogger(__name__)
_REFUSAL_LOG_MS: Final = 10_000
"""A full disk refuses every write; it is told so often."""


class Refusals:
    """Writes that the disk refused: counted, and told now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._told_ms = -_REFUSAL_LOG_MS
        self.listener: Callable[[str, StorageError], None] = lambda path, error: None
        """Told, in any thread, of each log directory that had no room for something of a log."""

    def of_log(self, path: str, partition: TopicPartition, error: StorageError) -> None:
        self.tell(f"log partition={partition}", error)
        self.listener(path, error)

    def tell(self, what: str, error: StorageError) -> None:
        self._count += 1
        now_ms = self._clock.wall_ms()
        if abs(now_ms - self._told_ms) >= _REFUSAL_LOG_MS:
            _logger.error("write refused what=%s error=%s times=%d", what, error, self._count)
            self._told_ms = now_ms
            self._count = 0


def persist_epochs(
    logs: Mapping[TopicPartition, Log],
    starts: Mapping[TopicPartition, int],
    known: Mapping[TopicPartition, int],
) -> None:
    """Before these log starts are written down in the place of `known`: the loader goes by what is
    less. Waits for the disk. Raises StorageError."""
    for key, start in starts.items():
        if start != known.get(key) and logs[key].damage is None:
            logs[key].epoch_file.persist()


def flush_idle(logs: Iterable[Log], now_ms: int, idle_ms: int) -> int:
    """Make closed segments durable, and logs that have been quiet for `idle_ms` or whose flush.ms
    or flush.messages has come; gives how many were touched. Waits for the disk."""
    touched = 0
    for log in logs:
        if log.failure is not None or log.damage is not None:
            continue
        quiet = now_ms - log.last_append_ms >= idle_ms
        behind = log.recovery_point < log.log_end_offset
        everything = (behind and quiet) or log.needs_flush(now_ms)
        if not everything and not log.has_closed_unflushed:
            continue
        try:
            log.flush(closed_only=not everything, now_ms=now_ms)
            touched += 1
        except BrokerError:
            # The log has told its owner, and so it is in the process's log.
            continue
    return touched


def run_retention(
    logs: Iterable[Log],
    now_ms: int,
    hw_of: Callable[[TopicPartition], int],
    producer_id_expiration_ms: int,
    busy: Container[TopicPartition] = (),
) -> int:
    """Delete what the topics' retention allows, and forget idle producers; gives the number of
    segments deleted. Belongs to the event loop, as appending does; logs that are `busy` elsewhere
    are left for the next time."""
    count = 0
    for log in logs:
        partition = log.topic_partition
        if partition in busy:
            continue
        try:
            deleted = log.delete_expired(now_ms, hw_of(partition))
            log.producers.expire(now_ms, producer_id_expiration_ms)
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
