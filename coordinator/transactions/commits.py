"""The records of one shard that are appended but not yet replicated to all in-sync replicas, and
the callbacks to call when a record is replicated."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.runtime.refusals import not_coordinator
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.errors import BrokerError

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5
"""The pause (s) before the next wait, after a wait for the in-sync replicas has failed. The
replicas may still get the records later."""


class Commits:
    """The uncommitted records of one shard. Owns a task while there are such records."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._waiting: deque[tuple[int, Callable[[], None], asyncio.Future[None]]] = deque()
        self._task = BackgroundTask(f"transactions {context.partition}")
        self._has_ended = False

    def add(self, offset: int, committed: Callable[[], None]) -> asyncio.Future[None]:
        """Call `committed` when all records below `offset` are committed. The returned future is
        done after that call. If the shard ends first, `committed` is not called, and the future
        fails with BrokerError NOT_COORDINATOR. `offset` must be the result of the latest `append`,
        without an await since."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiting and self._context.is_committed(offset):
            committed()
            future.set_result(None)
            return future
        future.add_done_callback(_retrieve)
        self._waiting.append((offset, committed, future))
        self._task.start(self._run)
        return future

    def end(self) -> None:
        """Fail all waiting futures. Idempotent."""
        self._has_ended = True
        self._task.cancel()
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(
                    not_coordinator("this broker does not coordinate the transactional id any more")
                )
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            try:
                await self._context.committed(self._waiting[0][0])
            except BrokerError as error:
                if self._has_ended:
                    return
                log.info(
                    "transactions not committed yet partition=%d offset=%d error=%s",
                    self._context.partition,
                    self._waiting[0][0],
                    error,
                )
                await asyncio.sleep(_LOOK_AGAIN_S)
                continue
            while self._waiting and self._context.is_committed(self._waiting[0][0]):
                _, committed, future = self._waiting.popleft()
                committed()
                if not future.done():
                    future.set_result(None)


def _retrieve(future: asyncio.Future[None]) -> None:
    """Keep asyncio from logging an exception that no caller awaits."""
    if not future.cancelled():
        future.exception()
