"""The outcomes of a producer's batches: each batch is delivered or fails, releases its memory, and
wakes the calls that wait for it."""

from __future__ import annotations

import asyncio
import logging

from pybroker.client.accumulator import Accumulator, ProducerBatch
from pybroker.client.budget import MemoryBudget
from pybroker.client.deliveries import Failed, Stored
from pybroker.client.metrics import ProducerMetrics
from pybroker.client.transactions.manager import TransactionManager
from pybroker.wire.messages.produce import PartitionProduceResponse

log = logging.getLogger(__name__)


class BatchOutcomes:
    """Sets the outcomes of a producer's batches. A batch that has an outcome keeps it."""

    def __init__(
        self,
        accumulator: Accumulator,
        budget: MemoryBudget,
        transactions: TransactionManager | None,
        metrics: ProducerMetrics,
    ) -> None:
        self._accumulator = accumulator
        self._budget = budget
        self._transactions = transactions
        self._metrics = metrics
        self._topics = metrics.topics
        self._released = asyncio.Event()

    def metrics(self, requests_in_flight: int) -> ProducerMetrics:
        """Return a copy of the metrics, with the present state of batches and memory."""
        found = self._metrics.copy()
        found.undelivered_records = sum(batch.count for batch in self._accumulator.batches())
        found.requests_in_flight = requests_in_flight
        found.buffer_total_bytes = self._budget.limit
        found.buffer_available_bytes = self._budget.limit - self._budget.used
        found.waiting_sends = len(self._budget.waiting)
        return found

    async def settled(self, batches: list[ProducerBatch]) -> None:
        """Wait until each record of these batches has succeeded or failed."""
        left = [*batches]
        while left:
            if left[-1].settled:
                left.pop()
            else:
                self._released.clear()
                await self._released.wait()

    async def emptied(self) -> None:
        """Wait until no batch waits or is in flight."""
        while self._accumulator.batches():
            self._released.clear()
            await self._released.wait()

    def deliver(self, batch: ProducerBatch, answer: PartitionProduceResponse) -> None:
        """Set the outcome of a batch: its records are stored at the offsets in the broker's
        answer."""
        if batch.outcome is None:
            counters = self._topics[batch.topic_partition.topic]
            counters.batches += 1
            counters.records += batch.count
            counters.bytes += len(batch.encoded or b"")
            counters.uncompressed_bytes += batch.size
        batch.settle(Stored(answer.base_offset, answer.log_append_time_ms))
        self._release(batch)

    def fail(self, batch: ProducerBatch, reason: str) -> None:
        """Fail the records of a batch. Log one line if the producer has no transactions and no task
        waits for the outcome of the batch."""
        if self._transactions is None and not batch.is_awaited:
            log.warning(
                "records not delivered partition=%s records=%d reason=%s",
                batch.topic_partition, batch.count, reason,
            )  # fmt: skip
        self._fail(batch, reason)

    def fail_all(self, error: BaseException) -> int:
        """Fail all undelivered records, and return their number."""
        failed = 0
        for queue in self._accumulator.active():
            for batch in [*queue.in_flight, *queue.waiting]:
                batch.maybe_written |= batch in queue.in_flight
                batch.last_error = batch.last_error or error
                batch.closed = True
                if not batch.expired:
                    failed += batch.count
                    self._fail(batch, str(error))
            queue.in_flight.clear()
            queue.waiting.clear()
        return failed

    def retry(self, batch: ProducerBatch) -> None:
        """Count the records of the batch as retried, in the metrics. This method does not send the
        batch again; the sender does."""
        self._topics[batch.topic_partition.topic].retried_records += batch.count

    def _fail(self, batch: ProducerBatch, reason: str) -> None:
        if batch.outcome is None:
            self._topics[batch.topic_partition.topic].failed_records += batch.count
        if self._transactions is not None:
            cause = batch.last_error or reason
            self._transactions.batch_failed(cause, sent=batch.has_sequence)
        batch.settle(Failed(reason, not batch.maybe_written, batch.last_error))
        self._release(batch)

    def _release(self, batch: ProducerBatch) -> None:
        if not batch.expired:
            self._budget.give_back(batch.memory)
            self._released.set()
