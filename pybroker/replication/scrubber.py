"""Reads all logs slowly and repeatedly, and reports logs with a corrupt range."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from pybroker.background import BackgroundTask, RetryLoop, on_this_loop
from pybroker.errors import BrokerError, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Clock
from pybroker.replication.manager import ReplicaManager
from pybroker.storage import scrub
from pybroker.storage.epochs import EPOCH_MAX
from pybroker.storage.log import Log
from pybroker.storage.log_parts import Damage
from pybroker.storage.manager import LogManager
from pybroker.storage.scrub import Place

log = logging.getLogger(__name__)

_BYTES_AT_A_TIME: Final = 256 * 1024
_BYTES_LEAST: Final = 32 * 1024
"""Each check counts as at least this many bytes against the limit, because a smaller read takes as
long as one of this size."""
_IDLE_S: Final = 1.0
_REST_S: Final = 30.0
"""The longest wait of the scrubber while no log is due. It does not look for new logs during the
wait: a new log has few records to check."""
_PAUSE_S: Final = 1.0
"""The longest pause between the checks of two logs, so that thousands of small logs take little
processor time. All pauses of a round together take at most half of the interval. The first check of
a log after the start of the broker has no pause: bits may have changed while the broker did not
run."""
_ALL: Final = 2**31
"""A number larger than the number of segments of any log."""


class Scrubber:
    """Checks each log of one broker every `interval_s` seconds, and reads at most
    `bytes_per_second` in total. The checks run from `start` until `stop`."""

    def __init__(
        self,
        *,
        logs: LogManager,
        replicas: ReplicaManager,
        blocking: Blocking,
        clock: Clock,
        bytes_per_second: int,
        interval_s: float,
        found: Callable[[TopicPartition, Damage], None],
    ) -> None:
        """`found` is called for each log with a corrupt range. With `bytes_per_second` 0, the
        scrubber checks only offsets at which a read has failed."""
        self._logs = logs
        self._replicas = replicas
        self._blocking = blocking
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._interval_s = interval_s
        self._found = found
        self._suspects: dict[TopicPartition, int] = {}
        self._changes = logs.changes.reader(logs.all())
        self._unread: dict[TopicPartition, None] = {}
        """The logs with records that were never checked."""
        self._looked_at: dict[TopicPartition, float] = {}
        """Log -> the time of its last check (monotonic seconds), from the earliest to the latest
        check."""
        self._task = BackgroundTask("scrubber")
        self._loop = RetryLoop("suspicions", self._look_at_suspects, _IDLE_S)

    def start(self) -> None:
        self._loop.start()
        self._replicas.on_suspicion = on_this_loop(self._suspect)
        if self._bytes_per_second > 0:
            self._task.start(self._run)

    async def stop(self) -> None:
        """Stop checking logs. Idempotent."""
        await self._loop.stop()
        await self._task.stop()

    def _suspect(self, key: TopicPartition, offset: int) -> None:
        self._suspects.setdefault(key, offset)
        self._loop.wake()

    async def _look_at_suspects(self) -> bool:
        """Check each offset at which a read has failed. Returns False, so that the `RetryLoop`
        calls this method again only after `wake`."""
        while self._suspects:
            key, offset = self._suspects.popitem()
            opened = self._logs.log(key)
            if opened is not None:
                base_offset = opened.segments.from_offset(offset)[0].base_offset
                await self._guarded(key, Place(base_offset, 0, base_offset), 1)
        return False

    async def _run(self) -> None:
        while True:
            due = self._due()
            for key in due:
                if key in self._looked_at:
                    await asyncio.sleep(min(_PAUSE_S, self._interval_s / (2 * len(due))))
                await self._guarded(key, None, _ALL)
                self._checked(key)
            if not due:
                await asyncio.sleep(min(_REST_S, self._interval_s))

    def _due(self) -> list[TopicPartition]:
        """Return the non-empty logs that were not checked for `interval_s`. Logs that were never
        checked come first, then those whose last check is longest ago."""
        for key in self._changes.take():
            if not self._has_records(key):
                self._forget(key)
            elif key not in self._looked_at:
                self._unread[key] = None
        before = self._clock.monotonic() - self._interval_s
        checked = takewhile(lambda each: each[1] <= before, self._looked_at.items())
        due = [*self._unread, *(key for key, _ in checked)]
        for key in due:
            if not self._has_records(key):
                self._forget(key)
        return [key for key in due if key in self._unread or key in self._looked_at]

    def _has_records(self, key: TopicPartition) -> bool:
        opened = self._logs.log(key)
        return opened is not None and opened.size_bytes > 0

    def _checked(self, key: TopicPartition) -> None:
        self._forget(key)
        self._looked_at[key] = self._clock.monotonic()

    def _forget(self, key: TopicPartition) -> None:
        self._unread.pop(key, None)
        self._looked_at.pop(key, None)

    async def _guarded(self, key: TopicPartition, place: Place | None, segments: int) -> None:
        try:
            await self._go_through(key, place, segments)
        except (BrokerError, StorageError) as error:
            # Requests that need the disk report its failure.
            log.warning("log cannot be read for scrubbing partition=%s error=%s", key, error)

    async def _go_through(self, key: TopicPartition, place: Place | None, segments: int) -> None:
        """Check `segments` segments of the log (`_ALL`: all of them), beginning at `place` (None:
        at the log start)."""
        is_slow = segments == _ALL
        bytes_max = _BYTES_AT_A_TIME
        if is_slow:
            bytes_max = min(bytes_max, max(self._bytes_per_second, _BYTES_LEAST))
        while segments:
            opened = self._logs.log(key)
            if opened is None or opened.failure is not None or opened.damage is not None:
                return
            known = self._epoch_max(key)
            looked = await self._blocking.run(scrub.look, opened, place, bytes_max, known)
            if looked.damage is not None:
                self._tell(key, opened, looked)
                return
            if is_slow:
                taken_bytes = max(looked.checked_bytes, _BYTES_LEAST)
                await asyncio.sleep(taken_bytes / self._bytes_per_second)
            before, place = place, looked.place
            if place is None:
                return
            if before is not None and before.base_offset != place.base_offset:
                segments -= 1

    def _tell(self, key: TopicPartition, opened: Log, looked: scrub.Looked) -> None:
        """Report the damage in `looked` if a second check confirms it. Must run on the event loop,
        so that no append changes the log meanwhile."""
        if key not in self._replicas.busy and scrub.is_confirmed(
            opened, looked, self._epoch_max(key)
        ):
            assert looked.damage is not None
            self._found(key, looked.damage)

    def _epoch_max(self, key: TopicPartition) -> int:
        """Return the largest leader epoch that is valid in this partition's log."""
        partition = self._replicas.partitions.get(key)
        return EPOCH_MAX if partition is None else partition.leader_epoch
