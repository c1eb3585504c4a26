"""Log directories without room. Replicas there are whole and can be read, but take no records: so
others are to lead, and these go on by themselves when there is room again.

A directory counts as full from the first write that it refuses until it has refused none for a
while and has room for some of the largest batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.errors import StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Clock
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
QUIET_S: Final = 3.0
"""Longer than any pause of a follower that tries again."""
ROOM_BYTES_MIN: Final = 4 * 1024**2


@dataclass(slots=True)
class _Full:
    reason: str
    yielding: set[TopicPartition] = field(default_factory=set)


class FullDisks:
    """Between `start` and `stop`: replicas of full directories would rather not lead."""

    def __init__(
        self, *, logs: LogManager, replicas: ReplicaManager, blocking: Blocking, clock: Clock
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._blocking = blocking
        self._clock = clock
        self._refused_at: dict[str, float] = {}
        self._full: dict[str, _Full] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task = BackgroundTask("full-disks")

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task.start(self._watch)
        self._logs.refusals.listener = self._refused

    async def stop(self) -> None:
        """Idempotent."""
        await self._task.stop()

    @property
    def full(self) -> Collection[str]:
        """The paths of the log directories that count as full; a snapshot."""
        return list(self._full)

    async def free_bytes(self) -> Mapping[str, int]:
        """Path -> room, of the log directories in use whose file system answers."""
        found = {}
        for path in self._logs.usable_directories:
            try:
                found[path] = await self._blocking.run(self._logs.free_bytes, path)
            except StorageError as error:
                log.debug("free room not known path=%s error=%s", path, error)
        return found

    def _refused(self, path: str, error: StorageError) -> None:
        """From any thread, with every write that a directory refuses: cheap but for the first."""
        self._refused_at[path] = self._clock.monotonic()
        loop = self._loop
        if path not in self._full and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._begin, path, str(error))

    def _begin(self, path: str, reason: str) -> None:
        if path in self._full or not self._task.runs:
            return
        self._full[path] = _Full(reason)
        log.error(
            "log directory full path=%s error=%s: make room there (shorter retention, fewer topics,"
            " a larger disk); brokers with room lead meanwhile, and nothing has to be restarted",
            path,
            reason,
        )
        self._mark(path)
        self._wake.set()

    def _mark(self, path: str) -> None:
        """Say it of the replicas that are there now, and of no others."""
        full = self._full[path]
        here = {key for key in self._logs.partitions_in(path) if self._has_others(key)}
        for key in sorted(here - full.yielding):
            self._replicas.leadership_yield.add(key, f"log directory {path} is full")
        for key in sorted(full.yielding - here):
            self._replicas.leadership_yield.remove(key)
        full.yielding = here

    def _has_others(self, key: TopicPartition) -> bool:
        partition = self._replicas.partitions.get(key)
        return partition is not None and (partition.is_replicated or not partition.is_leader)

    async def _watch(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._full:
                await asyncio.sleep(LOOK_S)
                for path in list(self._full):
                    await self._look(path)

    async def _look(self, path: str) -> None:
        if path in self._logs.failed_directories:
            self._end(path)
            return
        try:
            free_bytes = await self._blocking.run(self._logs.free_bytes, path)
        except StorageError as error:
            log.warning("free room not known path=%s error=%s", path, error)
            return
        quiet_s = self._clock.monotonic() - self._refused_at[path]
        if quiet_s >= QUIET_S and free_bytes >= ROOM_BYTES_MIN:
            log.info("log directory has room again path=%s free_bytes=%d", path, free_bytes)
            self._end(path)
        else:
            self._mark(path)

    def _end(self, path: str) -> None:
        for key in sorted(self._full.pop(path).yielding):
            self._replicas.leadership_yield.remove(key)
