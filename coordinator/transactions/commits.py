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
from pybroker.deferred import Deferred
from pybroker.errors import BrokerError

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5
"""The pause (s) before the next wait, after a wait for the in-sync replicas has failed. The
replicas may still get the records later."""


class Commits:
    """Calls a callback when an appended record of one shard is committed (all in-sync replicas have
    the record). Owns a task; `end` cancels the task."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._waiting: deque[tuple[int, Callable[[], None], Deferred[None]]] = deque()
        self._task = BackgroundTask(f"transactions {context.partition}")
        self._has_ended = False

    def add(self, offset: int, committed: Callable[[], None]) -> Deferred[None] | None:
        """Call `committed` when all records below `offset` are committed. Return None if
        `committed` has been called already, else a Deferred that waits for the call. The Deferred
        fails with BrokerError NOT_COORDINATOR if the shard ends.

        `offset` must be the result of the latest `append`, with no await between that `append` and
        this call.
        """
        if not self._waiting and self._context.is_committed(offset):
            committed()
            return None
        deferred: Deferred[None] = Deferred(_ignore_cancel)
        self._waiting.append((offset, committed, deferred))
        self._task.start(self._run)
        return deferred

    def end(self) -> None:
        """Fail all waits. Idempotent."""
        self._has_ended = True
        self._task.cancel()
        waiting, self._waiting = self._waiting, deque()
        for _, _, deferred in waiting:
            deferred.set_exception(
                not_coordinator("this broker does not coordinate the transactional id any more")
            )

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
                _, committed, deferred = self._waiting.popleft()
                committed()
                deferred.set_result(None)


def _ignore_cancel() -> None:
    """Do nothing when a caller stops waiting: the appended record is not taken back."""
