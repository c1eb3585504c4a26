"""The periodic work on all logs of a broker: flushes of idle logs, retention, and rate-limited log
lines about full disks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from pybroker.errors import BrokerError, CorruptionError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.storage.log import Log

log = logging.getLogger(__name__)
_REFUSAL_LOG_MS: Final = 10_000
"""The shortest time between two log lines about full disks, where every write fails."""


class Refusals:
    """Counts the writes that failed because a disk was full, and logs them at a limited rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._told_ms = -_REFUSAL_LOG_MS
        self.listener: Callable[[str, StorageError], None] = lambda path, error: None
        """Called in any thread for each write to a log that fails because the log directory is
        full. The arguments are the path of the log directory, and the error."""

    def of_log(self, path: str, partition: TopicPartition, error: StorageError) -> None:
        self.tell(f"log partition={partition}", error)
        self.listener(path, error)

    def tell(self, what: str, error: StorageError) -> None:
        self._count += 1
        now_ms = self._clock.wall_ms()
        if abs(now_ms - self._told_ms) >= _REFUSAL_LOG_MS:
            log.error(
                "write refused, disk full what=%s error=%s times=%d", what, error, self._count
            )
            self._told_ms = now_ms
            self._count = 0


def persist_epochs(
    logs: Mapping[TopicPartition, Log],
    starts: Mapping[TopicPartition, int],
    known: Mapping[TopicPartition, int],
) -> None:
    """Write the leader epoch file of each undamaged log whose log start offset in `starts` differs
    from the checkpointed offset in `known`. Call this before `starts` is checkpointed. Raises
    StorageError."""
    for key, start in starts.items():
        if start != known.get(key) and logs[key].damage is None:
            logs[key].epoch_file.persist()


def unflushed(logs: Iterable[Log]) -> list[TopicPartition]:
    """Return the partitions of the usable logs that have records above their recovery point."""
    return [
        log.topic_partition
        for log in logs
        if log.failure is None and log.damage is None and log.recovery_point < log.log_end_offset
    ]


def flush_idle(logs: Iterable[Log], now_ms: int, idle_ms: int) -> int:
    """Flush the closed segments of these logs, and the active segment if flush.ms,
    flush.messages or an idle time of `idle_ms` requires it. Return the number of flushed logs.
    Waits for the disk."""
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
            # The log has reported the error to its owner, and the owner logs it.
            continue
    return touched


def run_retention(
    logs: Iterable[Log],
    now_ms: int,
    hw_of: Callable[[TopicPartition], int],
    producer_id_expiration_ms: int,
    busy: Container[TopicPartition] = (),
) -> int:
    """Delete expired segments and the state of idle producers, but skip the partitions in `busy`.
    Return the number of deleted segments. Call this on the event loop only."""
    count = 0
    for partition_log in logs:
        partition = partition_log.topic_partition
        if partition in busy:
            continue
        try:
            deleted = partition_log.delete_expired(now_ms, hw_of(partition))
            partition_log.producers.expire(now_ms, producer_id_expiration_ms)
        except (BrokerError, StorageError, CorruptionError) as error:
            log.error("retention failed, trying again partition=%s error=%s", partition, error)
            partition_log.changes.touch(partition)
            continue
        partition_log.changes.note_files(partition)  # an earlier note may have been lost
        if deleted:
            log.info(
                "segments deleted by retention partition=%s count=%d log_start=%d",
                partition,
                deleted,
                partition_log.log_start_offset,
            )
        count += deleted
    return count
