"""The public producer. It accepts records, and returns a Delivery (an awaitable for the
acknowledgement) for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack

from pybroker.client import defaults
from pybroker.client.accumulator import Accumulator
from pybroker.client.appender import Appender, Partitioner
from pybroker.client.arrow import keys_and_values
from pybroker.client.batch_outcomes import BatchOutcomes
from pybroker.client.budget import MemoryBudget
from pybroker.client.bulk import BulkAppend
from pybroker.client.checked import (
    HeadersLike,
    checked_columns,
    checked_headers,
    checked_offset,
    checked_time,
)
from pybroker.client.cluster import Cluster
from pybroker.client.deliveries import Deliveries, Delivery, RecordMetadata
from pybroker.client.errors import ClientError, Closed, TransactionConflict
from pybroker.client.group_values import GroupMetadata, OffsetAndMetadata
from pybroker.client.keywords import ProducerKeywords
from pybroker.client.metrics import ProducerMetrics
from pybroker.client.metrics_reports import MetricsReports, OnMetrics
from pybroker.client.options import (
    IN_FLIGHT_WITH_IDEMPOTENCE_MAX,
    ProducerOptions,
    parse_options,
)
from pybroker.client.sender import Sender
from pybroker.client.serializers import SerializerLike, Serializers
from pybroker.client.transactions.manager import TransactionManager
from pybroker.client.transactions.states import State
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Rng
from pybroker.records.builder import record_size_max
from pybroker.records.type_variables import Key_contra, Value_contra

if TYPE_CHECKING:
    from pybroker.client.arrow import RecordBatch

log = logging.getLogger(__name__)

SENDS_IN_TURN_MAX: Final = 1_000
"""The number of calls of `send` after which a call yields to the event loop, even if no batch has
become full. This many calls take a few milliseconds."""


class Producer(Generic[Key_contra, Value_contra]):
    """A producer of records.

        async with Producer("localhost:9092", linger_ms=5) as producer:
            delivery = await producer.send("orders", b"...", key=b"42")
            print((await delivery).offset)

    The keyword arguments are those of `ProducerKeywords`. Records of one partition are stored in
    the order of `send`; with idempotence (the default) retries add no duplicates.

    A serializer is a function of the key or value, or an object with a method `serialize(topic,
    value)` or `serialize(topic, headers, value)`. A serializer is also called for None. If a
    serializer raises an error, `send` raises SerializationFailed. `send_arrow` does not use
    serializers.

    The end of the `async with` block waits for the delivery of the accepted records. If an
    exception ends the block, undelivered records fail at once. To deliver them, await `flush`
    before the block ends.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        key_serializer: SerializerLike[Key_contra] | None = None,
        value_serializer: SerializerLike[Value_contra] | None = None,
        partitioner: Partitioner | None = None,
        on_metrics: OnMetrics[ProducerMetrics] | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """Parse the options. Raises ConfigError with all invalid options.

        `partitioner` gets a topic's metadata, a key and a value, and returns the partition number,
        or None for the default. By default the key determines the partition, as in the Java client.
        Records without a key go to another partition after about batch.size bytes.

        `on_metrics`, a plain or an async function, gets the metrics every statistics.interval.ms
        and at the end of `close`.
        """
        faults: list[str] = []
        self._serializers = Serializers.of(key_serializer, value_serializer, faults)
        self.options = parse_options(ProducerOptions, options, bootstrap_servers, faults)
        self._clock = clock or defaults.make_clock()
        self._cluster = Cluster(
            self.options,
            clock=self._clock,
            rng=rng or defaults.make_rng(),
            auto_create_topics=self.options.allow_auto_create_topics,
            is_idle=self._is_idle,
        )
        self._budget = MemoryBudget(self.options.buffer_memory)
        self._accumulator = _accumulator(self.options)
        self._transactions = self._make_transactions()
        self._make_parts(partitioner, on_metrics)
        self._join = self._appender.join
        self._running = False
        self._undelivered = 0
        """The number of records that failed because the producer was closed."""
        self._sent_in_turn = 0
        """The number of calls of `send` since a call has last yielded to the event loop."""

    async def start(self) -> None:
        """Connect to a bootstrap broker. With a transactional.id, also fence earlier producers and
        end their open transaction. Raises NoBrokers after bootstrap.timeout.ms. With a
        transactional.id, also raises DeadlinePassed after max.block.ms, and TransactionError for an
        error that is not retried."""
        try:
            await self._cluster.start()
            if self._transactions is not None:
                await self._transactions.start(self._appender.deadline())
        except BaseException:
            await self._cluster.close()
            raise
        self._sender.start()
        self._reports.start()
        self._running = True

    async def close(self, timeout_s: float | None = None) -> None:
        """Close the producer. Idempotent. First abort an open transaction, then deliver the
        accepted records. Both steps together take at most `timeout_s` seconds (None:
        delivery.timeout.ms; 0: skip both steps). At the end, even if the call is cancelled, all
        undelivered records fail."""
        was_running, self._running = self._running, False
        self._appender.check_again()
        try:
            if timeout_s is None or timeout_s > 0:
                async with asyncio.timeout(timeout_s):
                    if self._transactions is not None and was_running:
                        await self._abort_open(self._transactions)
                    await self._flush()  # a concurrent `flush` continues independently
        except TimeoutError:
            pass
        finally:
            async with AsyncExitStack() as last:
                last.push_async_callback(self._cluster.close)
                last.push_async_callback(self._reports.close)
                self._undelivered += await self._sender.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._abort(error)

    async def send(
        self,
        topic: str,
        value: Value_contra | None = None,
        *,
        key: Key_contra | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Accept a record, and return its Delivery. Awaiting the Delivery returns the
        RecordMetadata, or raises DeliveryFailed. `timestamp_ms` is in ms since 1970; None means
        now.

        The call waits for metadata and memory, at most max.block.ms. If the call is cancelled, the
        record may still be sent.

        Raises TopicUnavailable, BufferExhausted, RecordTooLarge, Closed. Raises TypeError for text
        without a serializer, and ValueError for an invalid timestamp or header name. With a
        transactional.id, also raises the errors of `commit_transaction`.
        """
        pairs = checked_headers(headers) if headers else ()
        delivery = self._join(topic, value, key, pairs, partition, timestamp_ms)
        if delivery is None:
            found = self._appender.prepared(topic, value, key, pairs, partition, timestamp_ms)
            if isinstance(found, Delivery):
                delivery = found
            else:
                delivery = await self._appender.wait_and_append(topic, found, partition)
        self._sent_in_turn += 1
        if self._appender.filled or self._sent_in_turn >= SENDS_IN_TURN_MAX:
            await self._give_way()
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: Value_contra | None = None,
        *,
        key: Key_contra | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its RecordMetadata after the acknowledgement. For many records,
        `send` is faster. Raises DeliveryFailed, and the errors of `send`."""
        delivery = await self.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        return await delivery

    def send_nowait(
        self,
        topic: str,
        value: Value_contra | None = None,
        *,
        key: Key_contra | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Accept a record without waiting, and return its Delivery. Raises WouldBlock if the
        topic's metadata is unknown or buffer.memory is full, and the errors of `send`.

        Records are sent only while the application awaits something.
        """
        pairs = checked_headers(headers) if headers else ()
        delivery = self._join(topic, value, key, pairs, partition, timestamp_ms)
        if delivery is not None:
            return delivery
        found = self._appender.prepared(topic, value, key, pairs, partition, timestamp_ms)
        if isinstance(found, Delivery):
            return found
        return self._appender.append_nowait(topic, found, partition)

    async def send_many(
        self,
        topic: str,
        values: Iterable[Value_contra | None],
        keys: Iterable[Key_contra | None] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Accept a record for each value, with the key at the same index in `keys`. One call is
        much faster than many calls of `send`, and waits at most max.block.ms in total.

        If a call fails or is cancelled, the first records can already have been accepted. These
        records are still sent. `BufferExhausted.accepted` is their number. Raises the errors of
        `send`, and ValueError if the numbers of keys and values differ.
        """
        if self._serializers is not None:
            columns = keys, values, partition, self._give_way
            keys, values = await self._serializers.columns(topic, *columns)
        return await self._send_columns(topic, values, keys, partition, timestamp_ms)

    async def _send_columns(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Deliveries:
        bodies, names, largest = checked_columns(values, keys)
        self._appender.check_size(largest + record_size_max(None, None))
        timestamp = self._clock.wall_ms() if timestamp_ms is None else checked_time(timestamp_ms)
        bulk = BulkAppend(self._accumulator, topic, bodies, names, timestamp)
        await self._appender.append_many(bulk, partition, self._give_way)
        return bulk.deliveries()

    async def send_arrow(
        self,
        topic: str,
        batch: RecordBatch,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Accept a record for each row of an Arrow record batch with the columns `value` and
        optionally `key`, each binary or text. Needs pyarrow. Raises ValueError for other columns,
        and the errors of `send_many`."""
        keys, values = keys_and_values(batch)
        return await self._send_columns(topic, values, keys, partition, timestamp_ms)

    async def flush(self) -> None:
        """Send all batches without waiting for linger.ms. Return when each record that was accepted
        before this call has succeeded or failed; the deliveries have the results."""
        self._check_running()
        await self._flush()

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic. Raises TopicUnavailable after max.block.ms."""
        self._check_running()
        self._appender.use(topic)
        deadline = self._appender.deadline()
        return sorted((await self._cluster.topic(topic, deadline)).partitions)

    def metrics(self) -> ProducerMetrics:
        """Return the present metrics of the producer, for example for `prometheus_text`. Call this
        only in the producer's thread."""
        return self._outcomes.metrics(self._sender.in_flight)

    # Transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Return an async context manager for one transaction. The end of the block commits the
        transaction. A failure or a cancellation aborts the transaction, unless the outcome of the
        commit is unknown. Raises the errors of `commit_transaction`."""
        transactions = self._need_transactions("transaction")
        if transactions.state is State.ABORTING:
            await self.abort_transaction()
        self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            await self._abort_open(transactions)
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises Closed; TransactionConflict if a transaction is already open;
        ProducerFenced or FatalTransactionError if the producer cannot be used any more."""
        self._check_running()
        self._need_transactions("begin_transaction").begin()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata | str,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction. Each offset is that of the
        next record to read. `group` is the result of `Consumer.group_metadata`, or only a group id.
        With a group id, the broker does not fence old members and generations (KIP-447).

        If the request fails, the transaction can only be aborted. Raises the errors of
        `commit_transaction`, and ValueError for a negative offset.
        """
        self._check_running()
        transactions = self._need_transactions("send_offsets")
        chosen = {
            TopicPartition(*key): checked_offset(key, value) for key, value in offsets.items()
        }
        if isinstance(group, str):
            group = GroupMetadata(group)
        if chosen:
            await transactions.send_offsets(chosen, group, self._appender.deadline())

    async def commit_transaction(self) -> None:
        """Deliver all records of the transaction and commit it, within max.block.ms. Raises:

        - AbortableTransactionError: abort, then repeat the transaction.
        - ProducerFenced or FatalTransactionError: close the producer.
        - DeadlinePassed: call `commit_transaction` again. If `definite` is false, the commit may
          have succeeded.
        - TransactionConflict if no transaction is open.
        """
        self._check_running()
        transactions = self._need_transactions("commit_transaction")
        await transactions.commit(self._deliver_all, self._appender.deadline())

    async def abort_transaction(self) -> None:
        """Abort the transaction within max.block.ms. Unsent records fail. Raises:

        - ProducerFenced or FatalTransactionError: close the producer.
        - DeadlinePassed: call `abort_transaction` again.
        - TransactionConflict if no transaction is open, or if the outcome of a commit is unknown.
        """
        self._check_running()
        transactions = self._need_transactions("abort_transaction")
        await transactions.abort(self._outcomes.emptied, self._appender.deadline())

    async def _abort_open(self, transactions: TransactionManager) -> None:
        """Abort the open transaction, if there is one. A failure is only logged."""
        if not transactions.can_abort:
            return
        try:
            await transactions.abort(self._outcomes.emptied, self._appender.deadline())
        except ClientError as error:
            log.warning("transaction not aborted reason=%s", error)

    async def _deliver_all(self) -> None:
        self._accumulator.flushing += 1
        try:
            self._sender.wake()
            await self._outcomes.emptied()
        finally:
            self._accumulator.flushing -= 1

    def _need_transactions(self, call: str) -> TransactionManager:
        if self._transactions is None:
            raise TransactionConflict(f"{call} needs the option transactional.id")
        return self._transactions

    # Parts

    def _make_parts(
        self, partitioner: Partitioner | None, on_metrics: OnMetrics[ProducerMetrics] | None
    ) -> None:
        metrics = ProducerMetrics(self.options.client_id)
        self._reports = MetricsReports(
            on_metrics, self.metrics, self.options.statistics_interval_ms
        )
        self._outcomes = BatchOutcomes(self._accumulator, self._budget, self._transactions, metrics)
        self._sender = Sender(
            self.options,
            self._cluster,
            self._accumulator,
            self._outcomes,
            self._transactions,
            metrics,
        )
        self._appender = Appender(
            self.options,
            self._cluster,
            self._accumulator,
            self._budget,
            self._sender,
            self._transactions,
            self._serializers,
            partitioner,
            self._check_running,
        )

    def _make_transactions(self) -> TransactionManager | None:
        own_id = self.options.transactional_id
        if own_id is None:
            return None
        return TransactionManager(self.options, self._cluster, own_id, self._wake)

    async def _abort(self, reason: BaseException) -> None:
        """Close without waiting for deliveries, because the exception `reason` left the `async
        with` block. Log one line with the number of undelivered records."""
        try:
            await self.close(0)
        finally:
            if self._undelivered:
                log.warning("producer aborted undelivered=%d reason=%r", self._undelivered, reason)

    async def _flush(self) -> None:
        self._accumulator.flushing += 1
        try:
            self._sender.wake()
            await self._outcomes.settled(self._accumulator.batches())
        finally:
            self._accumulator.flushing -= 1

    def _check_running(self) -> None:
        if not self._running:
            raise Closed("the producer is not running: use it in an async with block")
        if self._sender.broken is not None:
            raise Closed(f"the producer has failed: {self._sender.broken}")

    def _is_idle(self, topic: str) -> bool:
        return self._appender.is_idle(topic)

    def _wake(self) -> None:
        self._sender.wake()

    async def _give_way(self) -> None:
        self._sent_in_turn = 0
        self._appender.filled = False
        await asyncio.sleep(0)


def _accumulator(options: ProducerOptions) -> Accumulator:
    return Accumulator(
        # A request has room for a batch of max.request.size only.
        batch_size=min(options.batch_size, options.max_request_size),
        linger_s=options.linger_ms / 1_000,
        idempotent=options.enable_idempotence,
        in_flight_max=min(
            options.max_in_flight_requests_per_connection, IN_FLIGHT_WITH_IDEMPOTENCE_MAX
        ),
    )
