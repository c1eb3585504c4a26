"""Sends the markers of ended transactions to the leaders of their partitions, until each marker is
written. A broker gets one request at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.background import BackgroundTask
from pybroker.errors import ErrorCode, PybrokerError
from pybroker.model import NO_LEADER, TopicPartition, TransactionMarker
from pybroker.ports import MarkerChannel

log = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX: Final = 1_000
RETRY_S: Final = 0.1
"""The pause (s) before a marker is sent again, and before the next look-up if a partition has no
leader."""
LOOK_FOR_TOPIC_S: Final = 1.0
"""The interval at which ZooKeeper is asked whether a topic that is missing in the metadata was
deleted."""

_NEEDS_NO_MARKER: Final = (
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.UNSUPPORTED_VERSION,
)
"""Errors of a partition that cannot have transactional records, as in Kafka."""
_FENCED: Final = (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
"""Errors that say that a later coordinator or a later producer exists."""


class Completion:
    """An ended transaction whose markers are being written. `remaining`: the partitions without a
    confirmed marker. `done` is called when none remains, but not after `cancel`."""

    __slots__ = ("done", "is_over", "marker", "remaining")

    def __init__(
        self,
        marker: TransactionMarker,
        partitions: Collection[TopicPartition],
        done: Callable[[], None],
    ) -> None:
        self.marker = marker
        self.remaining = set(partitions)
        self.done = done
        self.is_over = False

    def cancel(self) -> None:
        """Send no further marker. Idempotent."""
        self.is_over = True

    def written(self, partitions: Collection[TopicPartition]) -> None:
        """Record that these partitions need no further marker."""
        self.remaining.difference_update(partitions)
        if not self.remaining and not self.is_over:
            self.is_over = True
            self.done()


Work = dict[Completion, set[TopicPartition]]


class MarkerSender:
    """Sends the markers of all transactions that this broker coordinates, until `stop`.

    `leader_of` returns a broker id, NO_LEADER if no leader is alive, None for an unknown partition.
    `channel_to` returns None if the broker is not alive. `deleted` returns the partitions that are
    deleted in ZooKeeper, or raises PybrokerError.
    """

    def __init__(
        self,
        *,
        leader_of: Callable[[TopicPartition], int | None],
        channel_to: Callable[[int], MarkerChannel | None],
        deleted: Callable[[Collection[TopicPartition]], Awaitable[Collection[TopicPartition]]],
        log_limit: LogLimit,
    ) -> None:
        self._leader_of = leader_of
        self._channel_to = channel_to
        self._deleted = deleted
        self._log_limit = log_limit
        self._queues: dict[int, _Queue] = {}
        self._again: Work = {}
        self._again_task = BackgroundTask("transaction-markers-again")
        self._missing: Work = {}
        self._missing_task = BackgroundTask("transaction-markers-missing")
        self._has_stopped = False

    def send(self, completion: Completion) -> None:
        """Begin to send the markers of an ended transaction."""
        if completion.remaining:
            self._route(completion, completion.remaining)
        else:
            completion.written(())

    async def stop(self) -> None:
        """Send no further marker. Idempotent."""
        self._has_stopped = True
        for queue in self._queues.values():
            await queue.task.stop()
        await self._again_task.stop()
        await self._missing_task.stop()

    @property
    def waiting(self) -> int:
        """The number of markers that are in no request at the moment."""
        works = [self._again, self._missing, *(queue.work for queue in self._queues.values())]
        return sum(len(partitions) for work in works for partitions in work.values())

    @property
    def without_leader(self) -> int:
        """The number of markers whose partition has no leader."""
        missing = sum(map(len, self._missing.values()))
        again = [key for some in self._again.values() for key in some]
        return missing + sum(self._leader_of(key) in (None, NO_LEADER) for key in again)

    def _route(self, completion: Completion, partitions: Collection[TopicPartition]) -> None:
        """Add the transaction's markers for these partitions to the queues of the partitions'
        leaders."""
        if completion.is_over or self._has_stopped:
            return
        for key in partitions:
            leader = self._leader_of(key)
            if leader is None:
                self._missing.setdefault(completion, set()).add(key)
                self._missing_task.start(self._look_for_topics)
            elif leader == NO_LEADER:
                self._repeat(completion, (key,))
            else:
                queue = self._queues.get(leader)
                if queue is None:
                    queue = self._queues[leader] = _Queue(leader)
                queue.work.setdefault(completion, set()).add(key)
                queue.task.start(partial(self._run, queue))

    def _repeat(self, completion: Completion, partitions: Collection[TopicPartition]) -> None:
        """After a pause, call `_route` again for these partitions. Their leaders may have changed
        by then."""
        if partitions:
            self._again.setdefault(completion, set()).update(partitions)
            self._again_task.start(self._route_again)

    async def _route_again(self) -> None:
        while self._again:
            await asyncio.sleep(RETRY_S)
            work, self._again = self._again, {}
            for completion, partitions in work.items():
                self._route(completion, partitions)

    async def _look_for_topics(self) -> None:
        while self._missing:
            work, self._missing = self._missing, {}
            partitions = {key for some in work.values() for key in some}
            try:
                gone = await self._deleted(partitions)
            except PybrokerError as error:
                self._note("deleted topics not read from ZooKeeper", error)
                gone = ()
            for completion, some in work.items():
                completion.written(some.intersection(gone))
                self._repeat(completion, some.difference(gone))
            if gone:
                log.info("transaction markers dropped with topics partitions=%d", len(gone))
            await asyncio.sleep(LOOK_FOR_TOPIC_S)

    async def _run(self, queue: _Queue) -> None:
        while queue.work:
            await asyncio.sleep(0)  # markers that are added in one turn of the loop share a request
            batch = queue.take()
            if not batch:
                continue
            markers = [
                completion.marker._replace(partitions=tuple(sorted(partitions)))
                for completion, partitions in batch.items()
            ]
            codes: Sequence[Mapping[TopicPartition, ErrorCode]] | None = None
            channel = self._channel_to(queue.broker_id)
            if channel is not None:
                try:
                    codes = await channel.write_markers(markers)
                except (PybrokerError, OSError, TimeoutError) as error:
                    self._note(f"markers not sent to broker {queue.broker_id}", error)
            if codes is None:
                for completion, partitions in batch.items():
                    self._repeat(completion, partitions)
                continue
            for (completion, partitions), found in zip(batch.items(), codes, strict=True):
                self._answered(completion, partitions, found)

    def _answered(
        self,
        completion: Completion,
        partitions: Collection[TopicPartition],
        codes: Mapping[TopicPartition, ErrorCode],
    ) -> None:
        again = []
        written = []
        for key in partitions:
            code = codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is ErrorCode.NONE or code in _NEEDS_NO_MARKER:
                written.append(key)
            elif code in _FENCED:
                log.warning(
                    "transaction markers stopped producer_id=%d producer_epoch=%d"
                    " coordinator_epoch=%d partition=%s error=%s",
                    completion.marker.producer_id,
                    completion.marker.producer_epoch,
                    completion.marker.coordinator_epoch,
                    key,
                    code.name,
                )
                completion.cancel()
                return
            else:
                self._note(f"marker of {key} not written", code.name)
                again.append(key)
        self._repeat(completion, again)
        completion.written(written)

    def _note(self, what: str, reason: object) -> None:
        left_out = self._log_limit.allow("transaction markers")
        if left_out is not None:
            log.info(
                "transaction markers repeated event=%s reason=%r lines_left_out=%d",
                what,
                reason,
                left_out,
            )


class _Queue:
    """The markers for the partitions that one broker leads."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.work: Work = {}
        self.task = BackgroundTask(f"transaction-markers {broker_id}")

    def take(self) -> Work:
        """Remove and return the markers for one request."""
        batch: Work = {}
        count = 0
        for completion in [*self.work]:
            if completion.is_over:
                del self.work[completion]
                continue
            waiting = self.work[completion]
            room = PARTITIONS_PER_REQUEST_MAX - count
            if room <= 0:
                break
            if len(waiting) <= room:
                batch[completion] = self.work.pop(completion)
            else:
                taken = sorted(waiting)[:room]
                batch[completion] = set(taken)
                waiting.difference_update(taken)
            count += len(batch[completion])
        return batch
