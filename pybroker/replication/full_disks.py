"""Lets replicas in full log directories yield leadership. A log directory is full from the first
write that fails for lack of space, until no write has failed for `QUIET_S` and at least
`FREE_BYTES_MIN` bytes are free."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.background import RetryLoop, on_this_loop
from pybroker.errors import StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Clock
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
QUIET_S: Final = 3.0
"""A directory stays full for at least this time after its last failed write. This is longer than
any pause of a follower between two attempts to append."""
FREE_BYTES_MIN: Final = 4 * 1024**2


@dataclass(slots=True)
class _Full:
    reason: str
    yielding: set[TopicPartition] = field(default_factory=set)


class FullDisks:
    """From `start` to `stop`, finds full log directories, and lets the replicated partitions in
    these directories yield leadership."""

    def __init__(
        self, *, logs: LogManager, replicas: ReplicaManager, blocking: Blocking, clock: Clock
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._blocking = blocking
        self._clock = clock
        self._refused_at: dict[str, float] = {}
        self._full: dict[str, _Full] = {}
        self._loop = RetryLoop("full-disks", self._look, LOOK_S)

    def start(self) -> None:
        begin = on_this_loop(self._begin)

        def refused(path: str, error: StorageError) -> None:
            """Record that a write in the log directory `path` failed for lack of space. Callable in
            any thread."""
            self._refused_at[path] = self._clock.monotonic()
            if path not in self._full:
                begin(path, str(error))

        self._loop.start()
        self._logs.refusals.listener = refused

    async def stop(self) -> None:
        """Stop checking full directories for free space. Idempotent."""
        await self._loop.stop()

    @property
    def full(self) -> Collection[str]:
        """A copy of the paths of the log directories that are full now."""
        return list(self._full)

    async def free_bytes(self) -> Mapping[str, int]:
        """Return path -> free bytes, for each usable log directory. A directory that cannot be read
        is omitted."""
        found = {}
        for path in self._logs.usable_directories:
            try:
                found[path] = await self._blocking.run(self._logs.free_bytes, path)
            except StorageError as error:
                log.debug("log directory's free space cannot be read path=%s error=%s", path, error)
        return found

    def _begin(self, path: str, reason: str) -> None:
        if path in self._full or not self._loop.runs:
            return
        self._full[path] = _Full(reason)
        log.error(
            "log directory full path=%s error=%s: shorten the retention, delete topics or enlarge"
            " the disk. Other in-sync replicas lead meanwhile; no restart is needed",
            path,
            reason,
        )
        self._mark(path)
        self._loop.wake()

    def _mark(self, path: str) -> None:
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

    async def _look(self) -> bool:
        for path in list(self._full):
            await self._look_at(path)
        return bool(self._full)

    async def _look_at(self, path: str) -> None:
        if path in self._logs.failed_directories:
            self._end(path)
            return
        try:
            free_bytes = await self._blocking.run(self._logs.free_bytes, path)
        except StorageError as error:
            log.warning("full log directory cannot be checked path=%s error=%s", path, error)
            return
        quiet_s = self._clock.monotonic() - self._refused_at[path]
        if quiet_s >= QUIET_S and free_bytes >= FREE_BYTES_MIN:
            log.info("log directory has free space again path=%s free_bytes=%d", path, free_bytes)
            self._end(path)
        else:
            self._mark(path)

    def _end(self, path: str) -> None:
        for key in sorted(self._full.pop(path).yielding):
            self._replicas.leadership_yield.remove(key)
