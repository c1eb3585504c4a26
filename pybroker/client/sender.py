"""The sender of the producer. One loop sends the batches of the accumulator, without waiting for
responses. Each response is handled by the rules of the Java client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from pybroker.background import TaskOwner
from pybroker.client.accumulator import Accumulator, PartitionQueue, ProducerBatch
from pybroker.client.backoff import wait_for_event
from pybroker.client.batch_outcomes import BatchOutcomes
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import (
    WRITE_IN_DOUBT,
    ClientError,
    Closed,
    ResponseError,
    TransactionConflict,
    UnsupportedByBroker,
)
from pybroker.client.identity import ProducerIdentity
from pybroker.client.metadata import error_code
from pybroker.client.metrics import ProducerMetrics
from pybroker.client.options import ProducerOptions
from pybroker.client.produce_requests import (
    NO_POSITION,
    NO_RESULT,
    compress_batch,
    decode,
    encode,
    produce_request,
    results_of,
)
from pybroker.client.sequences import SequenceState
from pybroker.client.transactions.manager import TransactionManager
from pybroker.deferred import Deferred
from pybroker.errors import ErrorCode
from pybroker.records.compression import Codec
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.produce import PartitionProduceResponse, ProduceResponse

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1
COMPRESSED_AT_ONCE: Final = 128 * 1024
"""The maximum number of bytes that are compressed in one turn of the event loop. The slowest codec
takes some 5 ms for them."""
_Chosen = list[tuple[PartitionQueue, ProducerBatch]]
"""The batches of a request, each with its queue."""


class Sender:
    """The background task that sends a producer's batches, from `start` to `close`. `wake` tells it
    that batches may be ready."""

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        accumulator: Accumulator,
        outcomes: BatchOutcomes,
        transactions: TransactionManager | None,
        metrics: ProducerMetrics,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._accumulator = accumulator
        self._outcomes = outcomes
        self._metrics = metrics
        self._codec = Codec[options.compression_type.upper()]
        self._transactions = transactions
        self._identity = ProducerIdentity(cluster) if options.enable_idempotence else None
        if transactions is not None:
            self._identity = transactions.identity
        self._numbered = (-1, -1)
        """With transactions, the producer id and epoch to which the sequence numbers belong."""
        self._adding: asyncio.Task[None] | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._in_flight: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._tasks = TaskOwner(self._break)
        self.on_break: Callable[[], None] = lambda: None
        """The function to call when the producer cannot send any more."""
        self._broken: BaseException | None = None
        self._next_expiry = 0.0
        self._closed = False
        cluster.add_listener(self.wake)

    @property
    def broken(self) -> BaseException | None:
        """The error after which the producer cannot send any more; None if it can."""
        return self._broken

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return sum(self._in_flight.values())

    def start(self) -> None:
        self._tasks.start(self._run(), "producer sender").add_done_callback(self._ended)

    def wake(self) -> None:
        self._wake.set()

    def leader_problems(self) -> list[str]:
        """Return a message for each partition that has unsent records and no leader."""
        view = self._cluster.view
        queues = self._accumulator.active()
        problems = [view.leader_problem(each.topic_partition) for each in queues if each.waiting]
        return [problem for problem in problems if problem]

    async def close(self) -> int:
        """Stop the tasks, and fail all undelivered records with Closed. Return the number of these
        records. Idempotent."""
        self._closed = True
        try:
            await self._tasks.close()
        finally:
            self._in_flight.clear()
            failed = self._outcomes.fail_all(
                Closed("the producer was closed before the record was delivered")
            )
        return failed

    def _ended(self, task: asyncio.Task[None]) -> None:
        """If the sender's task was cancelled without `close`, log the number of lost records."""
        lost = sum(batch.count for batch in self._accumulator.batches())
        if task.cancelled() and not self._closed and lost:
            log.warning(
                "records not delivered records=%d reason=producer was not closed: call close()",
                lost,
            )

    async def _run(self) -> None:
        while self._broken is None:
            self._wake.clear()
            await self._compress(self._cluster.clock.monotonic())
            now = self._cluster.clock.monotonic()
            if now >= self._next_expiry:
                self._next_expiry = now + LOOK_AGAIN_S
                self._expire(now)
            if self._transactions is None:
                self._restart_sequences()
            else:
                self._attend(self._transactions)
            if self._identity is None or self._identity.known:
                self._send_ready(now)
            elif self._accumulator.outstanding and self._identifying is None:
                self._identifying = self._tasks.start(self._identify(), "producer id")
            self._add_partitions()
            await self._sleep(now)

    async def _sleep(self, now: float) -> None:
        """Sleep until `wake` is called or a batch is due. While a batch is undelivered, sleep at
        most LOOK_AGAIN_S, because nothing calls `wake` when a broker becomes reachable."""
        limit = None
        if self._accumulator.outstanding:
            due = self._accumulator.next_due(now)
            limit = LOOK_AGAIN_S if due is None else min(LOOK_AGAIN_S, due - now)
        await wait_for_event(self._wake, limit)

    async def _identify(self) -> None:
        """Get a producer id from a broker, in a background task."""
        assert self._identity is not None
        try:
            await self._identity.obtain()
        except (ResponseError, UnsupportedByBroker) as error:
            if error.retriable:
                await asyncio.sleep(self._cluster.pause_s(1))
            else:
                self._break(error)
        except ClientError as error:
            log.warning("producer id not received, asking again reason=%s", error)
            await asyncio.sleep(self._cluster.pause_s(1))
        finally:
            self._identifying = None
            self.wake()

    # Transactions

    def _attend(self, transactions: TransactionManager) -> None:
        """If the transaction can no longer be committed, fail its waiting batches. If the producer
        has a new epoch, restart the sequence numbers of all partitions."""
        if transactions.doomed:
            error = transactions.error or TransactionConflict("the transaction is aborted")
            for queue in self._accumulator.active():
                for batch in [*queue.waiting]:
                    queue.remove(batch)
                    batch.last_error = batch.last_error or error
                    self._outcomes.fail(batch, str(error))
        identity = (transactions.identity.producer_id, transactions.identity.producer_epoch)
        if identity != self._numbered:
            self._numbered = identity
            for queue in self._accumulator.queues.values():
                queue.sequences = SequenceState()

    def _add_partitions(self) -> None:
        """Start `TransactionManager.add_pending` as a task, unless the task is running."""
        transactions = self._transactions
        if transactions is None or not transactions.pending or transactions.doomed:
            return
        if self._adding is None or self._adding.done():
            self._adding = self._tasks.start(transactions.add_pending(), "add partitions")
            self._adding.add_done_callback(lambda _: self.wake())

    # Sending

    async def _compress(self, now: float) -> None:
        """Compress the batches that can be sent. Each time COMPRESSED_AT_ONCE bytes are compressed,
        let other tasks run."""
        if self._codec is Codec.NONE:
            return  # `_encode` copies the records
        used = 0
        sendable = [queue.waiting[0] for _, _, queues in self._sendable(now) for queue in queues]
        for batch in sendable:
            if batch.payload is not None or batch.settled:
                continue
            batch.closed = True
            for size in compress_batch(batch, self._codec):
                used += size
                if used >= COMPRESSED_AT_ONCE:
                    await asyncio.sleep(0)
                    used = 0

    def _sendable(self, now: float) -> Iterator[tuple[int, Connection, list[PartitionQueue]]]:
        """Yield (leader, its connection, queues whose oldest batch can be sent) for each leader
        that can get a request now."""
        by_node: dict[int, list[PartitionQueue]] = {}
        for queue in list(self._accumulator.ready(now)):
            if self._transactions and not self._transactions.may_send(queue.topic_partition):
                continue
            leader = self._cluster.view.leader(queue.topic_partition)
            if leader is None:
                self._cluster.request_refresh()
            else:
                by_node.setdefault(leader, []).append(queue)
        limit = self._options.max_in_flight_requests_per_connection
        for node, queues in by_node.items():
            if self._in_flight.get(node, 0) >= limit:
                continue
            connection = self._cluster.connected(node)
            if connection is not None:
                yield node, connection, queues

    def _send_ready(self, now: float) -> None:
        for node, connection, queues in self._sendable(now):
            if self._codec is not Codec.NONE:
                compressed = [queue for queue in queues if queue.waiting[0].payload is not None]
                if len(compressed) < len(queues):
                    self._wake.set()  # other batches became ready while these were compressed
                queues = compressed
            if queues:
                self._send(node, connection, queues)

    def _send(self, node: int, connection: Connection, queues: list[PartitionQueue]) -> None:
        """Send one request to the leader `node`, with the oldest batch of each queue, up to
        max.request.size in total."""
        chosen: _Chosen = []
        room = self._options.max_request_size
        for queue in queues:
            size = queue.waiting[0].size
            if chosen and size > room:
                self._wake.set()
                continue
            room -= size
            chosen.append((queue, self._accumulator.take(queue)))
        if any(queue.waiting for queue in queues):
            self._wake.set()
        now = self._cluster.clock.monotonic()
        for queue, batch in chosen:
            self._encode(queue, batch)
            if not batch.attempts:
                self._metrics.queue_time.add(now - batch.created)
            batch.attempts += 1
        request = produce_request([batch for _, batch in chosen], self._options)
        limit_s = self._options.request_timeout_ms / 1_000
        self._in_flight[node] = self._in_flight.get(node, 0) + 1
        if self._options.acks == 0:
            tell = partial(connection.tell, ApiKey.PRODUCE, request, timeout_s=limit_s)
            self._tasks.start(self._tell(node, tell, chosen), f"produce to {node}")
            return
        try:
            sent = connection.send(ApiKey.PRODUCE, request, ProduceResponse, timeout_s=limit_s)
        except ClientError as error:
            self._request_failed(node, chosen, error)
        else:
            handle = partial(self._answered, node, chosen, now)
            sent.add_done_callback(self._tasks.guarded(handle, f"produce to {node}"))

    def _encode(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Encode the batch, to the same bytes at every attempt. The first attempt assigns the
        sequence numbers."""
        if self._identity is not None and not batch.has_sequence:
            sequences = queue.sequences
            if sequences.producer_id < 0:
                sequences.start(self._identity.producer_id, self._identity.producer_epoch)
            batch.producer_id = sequences.producer_id
            batch.producer_epoch = sequences.producer_epoch
            batch.base_sequence = sequences.assign(batch.count)
        if batch.payload is None:
            for _ in compress_batch(batch, self._codec):
                pass
        if batch.encoded is None:
            batch.encoded = encode(batch, self._codec, self._transactions is not None)

    async def _tell(self, node: int, tell: Callable[[], Awaitable[None]], chosen: _Chosen) -> None:
        """Write a request that has no response (acks=0)."""
        try:
            await tell()
        except ClientError as error:
            self._request_failed(node, chosen, error)
            return
        # As in Apache's client: with acks=0 a record counts as delivered once the system has
        # accepted it.
        for queue, batch in chosen:
            self._settle(queue, batch, NO_POSITION)
        self._request_ended(node)

    def _request_failed(self, node: int, chosen: _Chosen, error: ClientError) -> None:
        self._metrics.failed_requests += 1
        self._cluster.request_refresh()
        for queue, batch in chosen:
            self._retry_or_fail(queue, batch, error, in_doubt=not error.definite)
        self._request_ended(node)

    def _request_ended(self, node: int) -> None:
        self._in_flight[node] -= 1
        if self._accumulator.waiting:
            self.wake()

    # Settling

    def _answered(
        self, node: int, chosen: _Chosen, began: float, sent: Deferred[ProduceResponse]
    ) -> None:
        """Handle the response or error of a Produce request, batch by batch. `began` is the time of
        the request, in monotonic seconds."""
        if self._closed:
            return
        try:
            response = sent.result()
        except ClientError as error:
            self._request_failed(node, chosen, error)
            return
        self._metrics.request_latency.add(self._cluster.clock.monotonic() - began)
        self._metrics.throttle_ms += response.throttle_time_ms
        results = results_of(response)
        for queue, batch in chosen:
            self._settle(queue, batch, results.get(queue.topic_partition, NO_RESULT))
        self._request_ended(node)

    def _settle(
        self, queue: PartitionQueue, batch: ProducerBatch, answer: PartitionProduceResponse
    ) -> None:
        if batch not in queue.in_flight:
            return  # all records have failed meanwhile
        code = error_code(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.in_flight.remove(batch)
            if batch.has_sequence and batch.producer_epoch == queue.sequences.producer_epoch:
                queue.sequences.acknowledge(batch.base_sequence, batch.count)
            known = code == ErrorCode.NONE
            self._outcomes.deliver(batch, answer if known else NO_POSITION)
            self._resolve(queue)
            return
        error = ResponseError(code, broker_sentence=answer.error_message or "")
        log.debug(
            "broker refused a batch partition=%s code=%s attempt=%d",
            queue.topic_partition, code.name, batch.attempts,
        )  # fmt: skip
        if self._transactions is not None:
            # The numbers of a transaction are reset by its coordinator only, after an abort.
            if code.retriable:
                self._cluster.request_refresh()
            self._retry_or_fail(queue, batch, error, in_doubt=code in WRITE_IN_DOUBT)
        elif code == ErrorCode.MESSAGE_TOO_LARGE and batch.may_be_split:
            if queue.has_numbers_before(batch):
                self._try_again(queue, batch, error)
                return
            queue.sequences.restarting |= batch.has_sequence
            self._accumulator.split(queue, batch, decode(batch))
        elif queue.lost_sequence(batch, code):
            queue.sequences.restarting = True
            self._retry_or_fail(queue, batch, error, in_doubt=False)
        else:
            if code.retriable:
                self._cluster.request_refresh()
            self._retry_or_fail(queue, batch, error, in_doubt=code in WRITE_IN_DOUBT)

    def _retry_or_fail(
        self, queue: PartitionQueue, batch: ProducerBatch, error: ClientError, *, in_doubt: bool
    ) -> None:
        if batch not in queue.in_flight:
            return
        batch.maybe_written |= in_doubt
        batch.last_error = error
        retriable = error.retriable or (
            self._transactions is None
            and batch.has_sequence
            and isinstance(error, ResponseError)
            and error.code
            in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
        )
        now = self._cluster.clock.monotonic()
        doomed = self._transactions is not None and self._transactions.doomed
        if retriable and not batch.expired and not doomed and now < self._deadline(batch):
            self._try_again(queue, batch, error)
            return
        queue.in_flight.remove(batch)
        if self._transactions is not None and batch.expired:
            return  # its transaction may have ended
        self._outcomes.fail(batch, str(error))
        self._leave_hole(queue, batch)

    def _try_again(self, queue: PartitionQueue, batch: ProducerBatch, error: ClientError) -> None:
        batch.last_error = error
        self._outcomes.retry(batch)
        pause_s = self._cluster.pause_s(batch.attempts)
        batch.next_try = self._cluster.clock.monotonic() + pause_s
        queue.put_back(batch)

    def _leave_hole(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch.has_sequence:
            queue.sequences.unresolved = True
        self._resolve(queue)

    def _resolve(self, queue: PartitionQueue) -> None:
        """Begin the reset of the sequence numbers if failed batches have left a gap in them. Do
        nothing while a batch with a sequence number waits or is in flight."""
        sequences = queue.sequences
        if sequences.unresolved and not queue.holds_sequences():
            sequences.restarting = sequences.has_hole()
            sequences.unresolved = False

    def _restart_sequences(self) -> None:
        """Reset the sequence numbers of each partition that needs a reset and has no batch in
        flight."""
        identity = self._identity
        if identity is None:
            return
        for queue in self._accumulator.active():
            sequences = queue.sequences
            if not sequences.restarting or queue.in_flight:
                continue
            identity.surpass(sequences.producer_id, sequences.producer_epoch)
            if not identity.known:
                return
            for batch in queue.waiting:
                batch.forget_sequence()
            sequences.start(identity.producer_id, identity.producer_epoch)
            log.info(
                "sequence numbers begin again at 0 partition=%s producer_id=%d producer_epoch=%d",
                queue.topic_partition, identity.producer_id, identity.producer_epoch,
            )  # fmt: skip

    def _expire(self, now: float) -> None:
        for queue in self._accumulator.active():
            for batch in [*queue.in_flight, *queue.waiting]:
                if batch.expired or now < self._deadline(batch):
                    continue
                in_flight = batch in queue.in_flight
                batch.maybe_written |= in_flight
                last = f"; last: {batch.last_error}" if batch.last_error else self._why_unsent()
                problem = self._cluster.view.leader_problem(queue.topic_partition)
                why = f"; {problem}{last}" if problem else last
                self._outcomes.fail(
                    batch,
                    f"delivery.timeout.ms={self._options.delivery_timeout_ms} has passed{why}",
                )
                if in_flight:
                    batch.expired = True
                else:
                    queue.remove(batch)
                    self._leave_hole(queue, batch)

    def _deadline(self, batch: ProducerBatch) -> float:
        return batch.created + self._options.delivery_timeout_ms / 1_000

    def _why_unsent(self) -> str:
        failures = self._cluster.last_failures()
        return "".join(f"; {failure.address}: {failure.reason}" for failure in failures)

    def _break(self, error: BaseException) -> None:
        """Fail all undelivered and all later records."""
        if self._broken is None:
            self._broken = error
            self.on_break()
            log.error("producer failed, it sends no further record reason=%s", error)
            self._outcomes.fail_all(error)
