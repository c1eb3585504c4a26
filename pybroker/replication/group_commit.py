"""Syncs logs before the broker acknowledges appended records (option flush.messages). Records that
are appended during a sync of a log wait for the next sync of the log."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import BrokerError
from pybroker.ports import Blocking
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_parts import Flushable
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)

_LANES_MAX: Final = 4
"""The maximum number of tasks that sync logs of one log directory at the same time. Each syncs a
different log: the file system's journal combines the syncs into one commit."""
_RETRY_S: Final = 1.0
"""The pause after a sync that failed because the disk was full; then the sync is repeated."""


@dataclass(slots=True)
class _Directory:
    """The syncs in one log directory: the logs that wait (`wanted`), the logs that are being synced
    (`busy`), and the tasks that sync (`lanes`). A log in both `wanted` and `busy` is synced once
    more."""

    wanted: dict[Flushable, None] = field(default_factory=dict)
    busy: set[Flushable] = field(default_factory=set)
    lanes: set[asyncio.Task[None]] = field(default_factory=set)


class GroupCommit:
    """Syncs logs before the broker acknowledges their new records. From `start` until `stop`, the
    logs of the log manager request their syncs here."""

    def __init__(self, *, logs: LogManager, replicas: ReplicaManager, blocking: Blocking) -> None:
        self._logs = logs
        self._replicas = replicas
        self._blocking = blocking
        self._directories: dict[str, _Directory] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._logs.sync_due = self._sync_due

    async def stop(self) -> None:
        """Finish all requested syncs. From then on each append syncs its log itself. Idempotent."""
        self._logs.sync_due = lambda _: False
        while lanes := [lane for each in self._directories.values() for lane in each.lanes]:
            await asyncio.gather(*lanes, return_exceptions=True)

    def _sync_due(self, due: Flushable) -> bool:
        """Request a sync of the log `due`. May be called from any thread. Return False if the event
        loop is closed: the log must then sync itself."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return False
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            self.commit(due)
        else:
            loop.call_soon_threadsafe(self.commit, due)
        return True

    def commit(self, due: Flushable) -> None:
        """Request a sync of the log `due`. The sync covers at least the records that the log has
        now."""
        path = due.directory.rpartition("/")[0]
        directory = self._directories.get(path)
        if directory is None:
            directory = self._directories[path] = _Directory()
        directory.wanted[due] = None
        if due not in directory.busy and len(directory.lanes) < _LANES_MAX:
            lane = asyncio.create_task(self._lane(directory), name=f"group-commit {path}")
            directory.lanes.add(lane)

    async def _lane(self, directory: _Directory) -> None:
        lane = asyncio.current_task()
        assert lane is not None
        try:
            while due := next(
                (each for each in directory.wanted if each not in directory.busy), None
            ):
                del directory.wanted[due]
                directory.busy.add(due)
                try:
                    await self._sync(due)
                finally:
                    directory.busy.discard(due)
        finally:
            # A done callback would run too late: the next request must find the lane free.
            directory.lanes.discard(lane)

    async def _sync(self, due: Flushable) -> None:
        try:
            await self._blocking.run(due.flush)
        except BrokerError as error:
            # A failed log directory wakes the waiting requests by itself. After a full disk the
            # sync is tried again.
            if due.failure is None:
                log.warning(
                    "sync failed, trying again partition=%s error=%s", due.topic_partition, error
                )
                asyncio.get_running_loop().call_later(_RETRY_S, self.commit, due)
            return
        self._replicas.log_synced(due)
        if due.durable_end < due.log_end_offset:
            self.commit(due)  # the log grew, or was truncated, during the sync
