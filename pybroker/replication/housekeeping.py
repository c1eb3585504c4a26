"""Periodic work on a broker's logs: checkpoints, retention, compaction, background flushes and the
removal of deleted files. The broker logs failed work, and tries again after the interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pybroker.aligned_timers import aligned_due
from pybroker.background import TaskOwner
from pybroker.compaction.cleaner import CleanerThread, LogCleaner
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StorageError
from pybroker.metrics import CleanerCounters
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Clock
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager
from pybroker.storage.retention_schedule import RetentionSchedule

log = logging.getLogger(__name__)


_FLUSH_CHECK_MS: Final = 1_000
"""The interval at which the broker looks for logs to flush: by flush.ms, by flush.messages, or
because the log has not been appended to for a while."""
_LOGS_A_TURN: Final = 200
"""The number of logs that retention checks before it yields to the event loop."""


class Housekeeping:
    """Runs the periodic work on a broker's logs between `start` and `stop`."""

    def __init__(
        self,
        *,
        logs: LogManager,
        replicas: ReplicaManager,
        blocking: Blocking,
        new_cleaner_thread: Callable[[], CleanerThread],
        clock: Clock,
        config: Callable[[], BrokerConfig],
        cleaner_counters: CleanerCounters | None = None,
        flush_check_ms: int = _FLUSH_CHECK_MS,
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._blocking = blocking
        self._clock = clock
        self._config = config
        self._flush_check_ms = flush_check_ms
        self._tasks = TaskOwner()
        self._retention = RetentionSchedule(logs.changes.reader(logs.all()), logs.log)
        self.cleaner = LogCleaner(
            logs=logs,
            high_watermark=self._high_watermark,
            busy=lambda: replicas.busy,
            new_thread=new_cleaner_thread,
            clock=clock,
            config=config,
            counters=cleaner_counters or CleanerCounters(),
        )

    def start(self) -> None:
        config = self._config()
        duties: list[tuple[str, int, Callable[[], Awaitable[None]]]] = [
            ("checkpoint", config.replica_high_watermark_checkpoint_interval_ms, self._checkpoint),
            ("retention", config.log_retention_check_interval_ms, self._retain),
            ("flush", self._flush_check_ms, self._flush_due),
            ("remove-deleted", 5_000, self._remove_deleted),
        ]
        for name, interval_ms, duty in duties:
            self._tasks.start(self._repeat(name, interval_ms / 1000, duty), name)
        self.cleaner.start()

    async def stop(self) -> None:
        """Stop all periodic work. Waits for work that runs in a thread. Idempotent."""
        await self.cleaner.stop()
        await self._tasks.close()

    def _high_watermark(self, key: TopicPartition) -> int:
        partition = self._replicas.partitions.get(key)
        return 0 if partition is None else partition.high_watermark

    async def _repeat(
        self, name: str, interval_s: float, duty: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(aligned_due(now, interval_s) - now)
            try:
                await duty()
            except StorageError as error:
                log.error("housekeeping failed, trying again duty=%s error=%s", name, error)

    async def _checkpoint(self) -> None:
        if not self._logs.checkpoints.is_due:
            return
        await _to_the_end(
            self._blocking.run(self._logs.write_checkpoints, self._replicas.high_watermarks())
        )

    async def _retain(self) -> None:
        high_watermarks = self._replicas.high_watermarks()
        keys = self._retention.due(self._clock.wall_ms())
        for start in range(0, len(keys), _LOGS_A_TURN):
            now_ms, busy = self._clock.wall_ms(), self._replicas.busy
            turn = keys[start : start + _LOGS_A_TURN]
            self._logs.run_retention(now_ms, lambda key: high_watermarks.get(key, 0), busy, turn)
            for key in turn:
                self._retention.looked_at(key, now_ms, busy)
            await asyncio.sleep(0)

    async def _flush_due(self) -> None:
        if self._logs.changes.unflushed:
            await _to_the_end(self._blocking.run(self._logs.flush_idle, self._clock.wall_ms()))

    async def _remove_deleted(self) -> None:
        if self._logs.changes.doomed or len(self._logs.deleted):
            await _to_the_end(self._blocking.run(self._logs.remove_deleted, self._clock.wall_ms()))


async def _to_the_end(work: Awaitable[object]) -> None:
    """Wait for the end of `work`, which runs in a thread. If the waiting task is cancelled, still
    wait for the end, and only then raise CancelledError."""
    future = asyncio.ensure_future(work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
