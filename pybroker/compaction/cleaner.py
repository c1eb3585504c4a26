"""The log cleaner of one broker. The cleaner compacts the log with the largest share of dirty bytes
(bytes that were not compacted yet), then chooses the next log."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from pybroker.background import TaskOwner
from pybroker.compaction.choice import Plan, plan, waits_for_change
from pybroker.compaction.cleaning import CannotClean, Result, clean
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, CorruptionError, DiskFull, StorageError
from pybroker.metrics import CleanerCounters
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Clock
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)
T = TypeVar("T")
_STEP_BYTES: Final = 1024 * 1024
"""About how many bytes each step in a thread reads. The cleaner can stop between two steps."""
_STEP_S: Final = 0.005
"""About how long each step in a thread lasts. Without the compiled loops a step holds the GIL,
which the event loop needs, too."""
_FIRST_REST_S: Final = 15.0
_LONGEST_REST_S: Final = 900.0
"""The longest pause before the cleaner tries a log again. The pause begins with `_FIRST_REST_S` and
doubles with each further failure to clean the log."""
_IDLE_S_MIN: Final = 0.01


@dataclass(frozen=True, slots=True)
class SetAside:
    """A log that the cleaner could not compact because of the error `reason`. The cleaner tries
    again at the time `until_s` (monotonic seconds). `rest_s` is the length of the pause."""

    reason: str
    rest_s: float
    until_s: float


class CleanerThread(Blocking, Protocol):
    """A thread for the steps of the log cleaner. The thread runs one step at a time."""

    def give_way(self) -> None:
        """Let another waiting thread use the processor, as sched_yield does. Only code that runs in
        the cleaner thread may call this method."""

    def close(self) -> None:
        """Wait for the running step, and end the thread."""


class LogCleaner:
    """Compacts logs in log.cleaner.threads tasks. `set_aside` has the logs that the cleaner could
    not compact.

    Each task has its own thread. If the tasks used the broker's thread pool, each step would wake
    another thread, often on the event loop's processor. The event loop would then wait for up to 4
    ms.
    """

    def __init__(
        self,
        *,
        logs: LogManager,
        high_watermark: Callable[[TopicPartition], int],
        busy: Callable[[], Container[TopicPartition]],
        new_thread: Callable[[], CleanerThread],
        clock: Clock,
        config: Callable[[], BrokerConfig],
        counters: CleanerCounters,
    ) -> None:
        """`busy` returns the partitions whose logs the cleaner must not change now."""
        self._logs = logs
        self._high_watermark = high_watermark
        self._busy = busy
        self._new_thread = new_thread
        self._clock = clock
        self._config = config
        self._counters = counters
        self._tasks = TaskOwner()
        self._threads: list[CleanerThread] = []
        self._workers = 0
        self._under_way: set[TopicPartition] = set()
        self._changes = logs.changes.reader(logs.all())
        self.set_aside: dict[TopicPartition, SetAside] = {}

    def start(self) -> None:
        if self._config().log_cleaner_enable:
            self._add_workers()

    async def stop(self) -> None:
        """Stop compaction, and wait for a step that runs in a thread. Idempotent."""
        await self._tasks.close()
        for thread in self._threads:
            thread.close()

    def _add_workers(self) -> None:
        while self._workers < max(self._config().log_cleaner_threads, 1):
            self._workers += 1
            self._tasks.start(self._work(self._workers), f"log-cleaner-{self._workers}")

    async def _work(self, number: int) -> None:
        thread = self._new_thread()
        self._threads.append(thread)
        while True:
            config = self._config()
            self._add_workers()
            chosen = self._choose() if number <= config.log_cleaner_threads else None
            if chosen is None:
                await asyncio.sleep(max(config.log_cleaner_backoff_ms / 1000, _IDLE_S_MIN))
                continue
            key = chosen.log.topic_partition
            self._under_way.add(key)
            chosen.log.segments.are_pinned = True
            size = sum(each.size for each in chosen.segments)
            self._counters.running_bytes += size
            try:
                await self._clean(chosen, thread)
            finally:
                self._counters.running_bytes -= size
                chosen.log.segments.are_pinned = False
                self._under_way.discard(key)

    def _choose(self) -> Plan | None:
        """Return the plan for the due log with the largest share of dirty bytes. Must run on the
        event loop, so that no log changes meanwhile."""
        best: Plan | None = None
        due_logs = due_bytes = 0
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic()
        busy = self._busy()
        for key in self._changes.take():
            partition_log = self._logs.log(key)
            if partition_log is None or not partition_log.config.compacts:
                continue
            self._changes.note(key)
            if key in self._under_way or key in busy:
                continue
            rest = self.set_aside.get(key)
            if rest is not None and now_s < rest.until_s:
                continue
            cleaned_to = self._logs.checkpoints.cleaned_to(key)
            try:
                found = plan(partition_log, cleaned_to, self._high_watermark(key), now_ms)
            except (StorageError, CorruptionError) as error:
                self._rest(key, error)
                continue
            if found is None and waits_for_change(partition_log.config):
                self._changes.forget(key)
            elif found is not None:
                due_logs, due_bytes = due_logs + 1, due_bytes + found.dirty_bytes
                if best is None or found.dirty_ratio > best.dirty_ratio:
                    best = found
        counters = self._counters
        counters.dirty_percent = 0 if best is None else round(best.dirty_ratio * 100)
        counters.due_logs = due_logs - (best is not None)
        counters.due_bytes = due_bytes - (0 if best is None else best.dirty_bytes)
        return best

    async def _clean(self, chosen: Plan, thread: CleanerThread) -> None:
        config = self._config()
        memory_bytes = config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1)
        load_factor = config.log_cleaner_io_buffer_load_factor
        key, began_s = chosen.log.topic_partition, self._clock.monotonic()
        steps = clean(
            chosen, self._logs.disk, memory_bytes, self._clock.wall_ms(), load_factor=load_factor
        )
        try:
            done = None
            while done is None:
                read_bytes, done = await _run(thread, self._advance, steps, thread.give_way)
                self._counters.read_bytes += read_bytes
                if done is None:
                    await self._throttle(read_bytes)
        except (CannotClean, CorruptionError, BrokerError, DiskFull) as error:
            self._rest(key, error)
            return
        except StorageError as error:
            if chosen.log.failure is None and chosen.generation == chosen.log.segments.generation:
                self._rest(key, error)
            return
        finally:
            await _run(thread, steps.close)
        write = self._logs.checkpoints.write_cleaned_to
        if not await _run(thread, write, chosen.log, chosen.generation, done.cleaned_to):
            # Without this pause the cleaner would clean the same part again and again.
            self._rest(
                key,
                StorageError("the file cleaner-offset-checkpoint cannot be written"),
            )
            return
        self.set_aside.pop(key, None)
        seconds = self._clock.monotonic() - began_s
        self._count(done, seconds)
        log.info(
            "log cleaned partition=%s cleaned_to=%d bytes_before=%d bytes_after=%d keys=%d"
            " map_bytes=%d seconds=%.2f",
            key,
            done.cleaned_to,
            done.before_bytes,
            done.after_bytes,
            done.keys,
            done.map_bytes,
            seconds,
        )

    def _count(self, done: Result, seconds: float) -> None:
        counters = self._counters
        counters.uncleanable = len(self.set_aside)
        counters.passes += 1
        counters.removed_bytes += done.before_bytes - done.after_bytes
        counters.recopy_percent = round(done.after_bytes / max(done.before_bytes, 1) * 100)
        counters.last_clean_seconds = round(seconds)

    async def _throttle(self, done_bytes: int) -> None:
        rate = self._config().log_cleaner_io_max_bytes_per_second
        if rate < sys.float_info.max:
            await asyncio.sleep(done_bytes / rate)

    def _rest(self, key: TopicPartition, error: Exception) -> None:
        before = self.set_aside.get(key)
        rest_s = _FIRST_REST_S if before is None else min(2 * before.rest_s, _LONGEST_REST_S)
        until_s = self._clock.monotonic() + rest_s
        self.set_aside[key] = SetAside(str(error), rest_s, until_s)
        self._counters.uncleanable = len(self.set_aside)
        log.error(
            "log cannot be cleaned, trying again partition=%s pause_s=%.0f error=%s",
            key,
            rest_s,
            error,
        )

    def _advance(
        self, steps: Iterator[int | Result], give_way: Callable[[], None]
    ) -> tuple[int, Result | None]:
        """Continue the pass for about `_STEP_BYTES` or `_STEP_S`, and call `give_way` after each
        block. Return the number of bytes read, and the result (None: the pass has not ended)."""
        total, until_s = 0, self._clock.monotonic() + _STEP_S
        for done in steps:
            if isinstance(done, Result):
                return total, done
            total += done
            give_way()
            if total >= _STEP_BYTES or self._clock.monotonic() >= until_s:
                break
        return total, None


async def _run(thread: Blocking, function: Callable[..., T], *arguments: object) -> T:
    """Call `function` in the thread, and return its result. A cancelled caller still waits until
    `function` has returned."""
    future = asyncio.ensure_future(thread.run(function, *arguments))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
