"""A transactional id in the memory of its coordinator."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from functools import partial
from typing import Final

from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.coordinator.transactions.markers import Completion
from pybroker.coordinator.transactions.states import PREPARED
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction

ID_BYTES: Final = 1_000
"""About how many bytes of memory a transactional id takes, without its name and partitions."""
PARTITION_BYTES: Final = 150


class Entry:
    """A transactional id. `transaction`: the last appended state. `committed`: the last committed
    state, by which requests are decided (None at first). A new state becomes `committed` when its
    record is committed in the log. CompleteCommit and CompleteAbort already become `committed` when
    their record is appended. `previous`: the producer id and epoch that the last InitProducerId
    replaced. A failover loses `previous`, as in Kafka."""

    __slots__ = ("_waiting", "committed", "completion", "is_pending", "previous", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.committed: Transaction | None = None
        self.is_pending = False
        self.previous: ProducerIdAndEpoch | None = None
        self.completion: Completion | None = None
        self._waiting: tuple[asyncio.Future[None], ...] = ()

    def size(self) -> int:
        """Return the approximate memory of the transactional id, in bytes."""
        found = self.transaction
        return size_of(found.transactional_id, len(found.partitions))

    def shown(self) -> Transaction | None:
        """Return `committed` for DescribeTransactions and ListTransactions. While markers are being
        written, the result's `partitions` has only the partitions whose marker is not confirmed."""
        shown = self.committed
        if shown is not None and shown.state in PREPARED and self.completion is not None:
            return replace(shown, partitions=frozenset(self.completion.remaining))
        return shown

    async def completed(self, context: ShardContext, timeout_s: float) -> None:
        """Wait until the transaction is complete or the shard ends, at most `timeout_s` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting += (future,)
        timer = context.call_later(timeout_s, partial(_set, future))
        try:
            await future
        finally:
            timer.cancel()
            self._waiting = tuple(each for each in self._waiting if each is not future)

    def wake(self) -> None:
        """Let all calls of `completed` return, because the transaction is complete or the shard
        ends."""
        waiting, self._waiting = self._waiting, ()
        for future in waiting:
            _set(future)


def size_of(transactional_id: str, partitions: int) -> int:
    """Return the approximate memory of a transactional id with this number of partitions, in
    bytes."""
    return ID_BYTES + 2 * sys.getsizeof(transactional_id) + partitions * PARTITION_BYTES


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
