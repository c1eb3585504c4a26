"""The records of one shard that are appended but not yet replicated to all in-sync replicas, and
the callbacks to call when a record is replicated."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pybroker.coordinator.runtime.refusals import not_coordinator
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.deferred import Deferred
from pybroker.errors import BrokerError

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5
"""The pause (s) before the next wait, after a wait for the in-sync replicas has failed."""
_SLOW_S: Final = 30.0
"""If the in-sync replicas do not have a record after this time (s), a log line says so."""


@dataclass(slots=True)
class _Record:
    """An appended record that is not committed yet. `since` (monotonic s): when it was appended, or
    the time of the last log line about it."""

    offset: int
    committed: Callable[[], None]
    deferred: Deferred[None]
    since: float


class Commits:
    """Calls a callback when an appended record of one shard is committed (all in-sync replicas have
    the record), until `end`."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._waiting: deque[_Record] = deque()
        self._end_wait: Callable[[], None] | None = None
        """Ends the wait for the first record in `_waiting`; None without a wait."""
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
        now = self._context.clock.monotonic()
        self._waiting.append(_Record(offset, committed, deferred, now))
        self._wait()
        return deferred

    def end(self) -> None:
        """Fail all waits. Idempotent."""
        self._has_ended = True
        self._stop_waiting()
        waiting, self._waiting = self._waiting, deque()
        for record in waiting:
            record.deferred.set_exception(
                not_coordinator("this broker does not coordinate the transactional id any more")
            )

    def _wait(self) -> None:
        """Begin to wait for the first record in `_waiting`, unless such a wait has begun."""
        if self._waiting and self._end_wait is None and not self._has_ended:
            offset = self._waiting[0].offset
            try:
                self._end_wait = self._context.when_committed(offset, self._look)
            except BrokerError as error:
                self._wait_again_later(error)

    def _stop_waiting(self) -> None:
        end_wait, self._end_wait = self._end_wait, None
        if end_wait is not None:
            end_wait()

    def _look(self) -> None:
        self._stop_waiting()
        while self._waiting:
            first = self._waiting[0]
            try:
                is_committed = self._context.is_committed(first.offset)
            except BrokerError as error:
                self._wait_again_later(error)
                return
            if not is_committed:
                self._log_if_slow(first)
                break
            self._waiting.popleft()
            first.committed()
            first.deferred.set_result(None)
        self._wait()

    def _wait_again_later(self, error: BrokerError) -> None:
        if self._has_ended:
            return
        self._stop_waiting()
        self._log(str(error))
        self._end_wait = self._context.call_later(_LOOK_AGAIN_S, self._look).cancel

    def _log_if_slow(self, record: _Record) -> None:
        now = self._context.clock.monotonic()
        if now - record.since >= _SLOW_S:
            record.since = now
            self._log("the followers have not replicated the records")

    def _log(self, reason: str) -> None:
        log.info(
            "transactions not committed yet partition=%d records=%d reason=%s",
            self._context.partition,
            len(self._waiting),
            reason,
        )


def _ignore_cancel() -> None:
    """Do nothing when a caller stops waiting: the appended record is not taken back."""
