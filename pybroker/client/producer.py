"""The public producer. It accepts records and returns futures of their positions."""

from __future__ import annotations

import asyncio
import logging
import math
import operator
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self, Unpack

from pybroker.client import defaults
from pybroker.client.accumulator import Accumulator, Appended, PendingRecord, RecordMetadata
from pybroker.client.backoff import Deadline
from pybroker.client.budget import MemoryBudget
from pybroker.client.cluster import Cluster
from pybroker.client.errors import (
    BufferExhausted,
    ClientError,
    Closed,
    RecordTooLarge,
    TopicUnavailable,
    TransactionConflict,
)
from pybroker.client.group_values import GroupMetadata, OffsetAndMetadata
from pybroker.client.keywords import ProducerKeywords
from pybroker.client.metadata import TopicInfo
from pybroker.client.options import (
    IN_FLIGHT_WITH_IDEMPOTENCE_MAX,
    ProducerOptions,
    parse_options,
)
from pybroker.client.partitioner import Partitioner
from pybroker.client.sender import Sender
from pybroker.client.transactions.manager import TransactionManager
from pybroker.client.transactions.states import State
from pybroker.errors import ErrorCode
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.ports import Buffer, Clock, Rng
from pybroker.records.batch import HEADER_SIZE
from pybroker.records.builder import record_size_max
from pybroker.records.record import Headers

log = logging.getLogger(__name__)

SENDS_IN_TURN_MAX: Final = 1_000
"""The maximum number of calls of `send` after which one call yields to the event loop, even if no
batch becomes full, as with large batches or many partitions. They take a few milliseconds."""
_TIMESTAMP_MAX: Final = 2**63 - 1

HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


class Producer:
    """A producer of records.

        async with Producer("localhost:9092", linger_ms=5) as producer:
            delivery = await producer.send("orders", b"...", key=b"42")
            print((await delivery).offset)

    The keyword arguments are those of `ProducerKeywords`. Records of one partition are
    stored in the order of `send`; with idempotence (the default) retries add no duplicates.

    The end of the `async with` block waits for the delivery of the accepted records, as `close`
    does. If an exception or a cancellation ends the block, undelivered records fail at once, as
    with `close(0)`. Await `flush` before to deliver them.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """Parse the options. Raises ConfigError with all invalid options."""
        self.options = parse_options(ProducerOptions, options, bootstrap_servers)
        self._clock = clock or defaults.make_clock()
        rng = rng or defaults.make_rng()
        self._cluster = Cluster(
            self.options,
            clock=self._clock,
            rng=rng,
            auto_create_topics=self.options.allow_auto_create_topics,
            is_idle=self._is_idle,
        )
        self._used: dict[str, float] = {}
        """The time of the last `send` to each topic, for metadata.max.idle.ms."""
        self._budget = MemoryBudget(self.options.buffer_memory)
        self._accumulator = Accumulator(
            batch_size=self.options.batch_size,
            linger_s=self.options.linger_ms / 1_000,
            idempotent=self.options.enable_idempotence,
            in_flight_max=min(
                self.options.max_in_flight_requests_per_connection,
                IN_FLIGHT_WITH_IDEMPOTENCE_MAX,
            ),
        )
        self._partitioner = Partitioner(rng, self.options.batch_size)
        self._transactions: TransactionManager | None = None
        if self.options.transactional_id is not None:
            self._transactions = TransactionManager(
                self.options, self._cluster, self.options.transactional_id, self._wake
            )
        self._sender = Sender(
            self.options, self._cluster, self._accumulator, self._budget, self._transactions
        )
        self._running = False
        self._sent_in_turn = 0
        """The number of calls of `send` since a call has last yielded to the event loop."""

    async def start(self) -> None:
        """Connect to one of the bootstrap brokers. With a transactional.id, also fence earlier
        producers and end their open transaction. Raises NoBrokers after bootstrap.timeout.ms,
        DeadlinePassed after max.block.ms, TransactionError."""
        try:
            await self._cluster.start()
            if self._transactions is not None:
                await self._transactions.start(self._deadline())
        except BaseException:
            await self._cluster.close()
            raise
        self._sender.start()
        self._running = True

    async def close(self, timeout_s: float | None = None) -> None:
        """Deliver the accepted records within `timeout_s` seconds, and close the producer. None
        means delivery.timeout.ms, within which every record succeeds or fails. With 0 no more
        records are sent. Undelivered records fail, also if the call is cancelled. An open
        transaction is aborted, unless `timeout_s` is 0. Idempotent."""
        was_running, self._running = self._running, False
        try:
            if timeout_s is None or timeout_s > 0:
                async with asyncio.timeout(timeout_s):
                    if self._transactions is not None and was_running:
                        await self._abort_open(self._transactions)
                    await self._flush()  # a concurrent `flush` continues independently
        except TimeoutError:
            pass
        finally:
            try:
                await self._sender.close()
            finally:
                await self._cluster.close()

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
        value: Buffer | None = None,
        *,
        key: Buffer | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Accept a record, and return a future of its position in the log. `timestamp_ms` is in ms
        since 1970, None means now.

        The call waits for the metadata of the topic and for free memory, at most max.block.ms. If
        it is cancelled during this time, the record is not accepted. If a batch is full, the call
        accepts the record and then yields to the event loop once. If it is cancelled at this point,
        the record is still sent, and `flush` and `close` wait for it.

        Raises TopicUnavailable, BufferExhausted, RecordTooLarge, Closed (and TypeError for text:
        encode it first; ValueError for a time or a header's name that no record can hold). With a
        transactional.id, raises the errors of `commit_transaction`. The future raises
        DeliveryFailed.
        """
        given_ms = None if timestamp_ms is None else _time(timestamp_ms)
        key_bytes, value_bytes = _octets(key, "key"), _octets(value, "value")
        header_list = _headers(headers)
        size = record_size_max(key_bytes, value_bytes, header_list)
        self._check_size(size)
        self._check_running()
        number = None if self._transactions is None else self._transactions.check_open("send")
        self._use(topic)
        deadline = self._deadline()
        known = await self._topic(topic, partition, deadline)
        self._check_running()
        if not self._budget.try_take(size):
            await self._wait_for_memory(size, deadline)
        if self._transactions is not None:
            try:
                self._transactions.check_open("send", number)
            except ClientError:
                self._budget.give_back(size)
                raise
        chosen = self._choose(known, key_bytes, size) if partition is None else partition
        record = PendingRecord(
            self._clock.wall_ms() if given_ms is None else given_ms,
            key_bytes,
            value_bytes,
            header_list,
            asyncio.get_running_loop().create_future(),
            size,
        )
        now = self._clock.monotonic()
        appended = self._accumulator.append(TopicPartition(topic, chosen), record, now)
        if appended:
            self._sender.wake()
        self._sent_in_turn += 1
        if appended is Appended.FILLED or self._sent_in_turn >= SENDS_IN_TURN_MAX:
            await self._give_way()
        return record.delivery

    async def send_and_wait(
        self,
        topic: str,
        value: Buffer | None = None,
        *,
        key: Buffer | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its position in the log once it is delivered. Many calls in
        turn are slow, because each waits for its own batch. If the call is cancelled while it
        waits, the record is still sent. Raises DeliveryFailed, and the errors of `send`."""
        delivery = await self.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        return await delivery

    async def flush(self) -> None:
        """Send all batches without waiting for linger.ms. Return as soon as each record that `send`
        accepted before this call has succeeded or failed. The futures of `send` have the
        results."""
        self._check_running()
        await self._flush()

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic. Raises TopicUnavailable after max.block.ms."""
        self._check_running()
        self._use(topic)
        return sorted((await self._cluster.topic(topic, self._deadline())).partitions)

    # Transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Return an async context manager for one transaction: the end of the block commits. If an
        exception or a cancellation ends the block, or the commit fails, the transaction is aborted,
        and the exception leaves the block.

        An abort that an earlier block could not complete is completed first. Raises the errors of
        `commit_transaction`."""
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
        """Begin a transaction. Raises TransactionConflict if one is open, ProducerFenced,
        FatalTransactionError, Closed."""
        self._check_running()
        self._need_transactions("begin_transaction").begin()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata | str,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction. An offset is that of the
        next record to read. `group` is the result of `Consumer.group_metadata`, with which the
        broker refuses offsets from a member that has left its generation (KIP-447), or a group id.

        After any failure the transaction can only be aborted. Raises the errors of
        `commit_transaction`, and ValueError for a negative offset."""
        self._check_running()
        transactions = self._need_transactions("send_offsets")
        chosen = {TopicPartition(*key): _offset(value) for key, value in offsets.items()}
        if isinstance(group, str):
            group = GroupMetadata(group)
        if chosen:
            await transactions.send_offsets(chosen, group, self._deadline())

    async def commit_transaction(self) -> None:
        """Deliver all records of the transaction and commit it, within max.block.ms.

        Raises AbortableTransactionError if a record was not delivered: abort, then repeat the
        transaction. ProducerFenced and FatalTransactionError: close the producer. DeadlinePassed:
        call `commit_transaction` again; if `definite` is false, the transaction may be committed.
        TransactionConflict if no transaction is open."""
        self._check_running()
        transactions = self._need_transactions("commit_transaction")
        await transactions.commit(self._deliver_all, self._deadline())

    async def abort_transaction(self) -> None:
        """Abort the transaction within max.block.ms. The deliveries of unsent records fail. Raises
        ProducerFenced, FatalTransactionError, TransactionConflict; DeadlinePassed: call
        `abort_transaction` again."""
        self._check_running()
        transactions = self._need_transactions("abort_transaction")
        await transactions.abort(self._sender.emptied, self._deadline())

    async def _abort_open(self, transactions: TransactionManager) -> None:
        """Abort the open transaction, if there is one. A failure is only logged, so that it does
        not hide the exception that caused the abort."""
        if not transactions.must_abort:
            return
        try:
            await transactions.abort(self._sender.emptied, self._deadline())
        except ClientError as error:
            log.warning("transaction not aborted reason=%s", error)

    async def _deliver_all(self) -> None:
        self._accumulator.flushing += 1
        try:
            self._sender.wake()
            await self._sender.emptied()
        finally:
            self._accumulator.flushing -= 1

    def _need_transactions(self, call: str) -> TransactionManager:
        if self._transactions is None:
            raise TransactionConflict(f"{call} needs the option transactional.id")
        return self._transactions

    # Parts

    async def _abort(self, reason: BaseException) -> None:
        """Close without waiting for deliveries, because the exception `reason` ends the
        application's block. One log line reports all records that fail, because their futures may
        not be awaited."""
        left = [
            record.delivery for batch in self._accumulator.batches() for record in batch.records
        ]
        try:
            await self.close(0)
        finally:
            lost = sum(
                each.done() and not each.cancelled() and each.exception() is not None
                for each in left
            )
            if lost:
                log.warning("producer aborted undelivered=%d reason=%r", lost, reason)

    async def _flush(self) -> None:
        self._accumulator.flushing += 1
        try:
            self._sender.wake()
            await self._sender.settled(self._accumulator.batches())
        finally:
            self._accumulator.flushing -= 1

    def _check_running(self) -> None:
        if not self._running:
            raise Closed("the producer is not running: use it in an async with block")
        if self._sender.broken is not None:
            raise Closed(f"the producer has failed: {self._sender.broken}")

    def _deadline(self) -> Deadline:
        return Deadline(self._clock, self.options.max_block_ms)

    def _wake(self) -> None:
        self._sender.wake()

    def _check_size(self, size: int) -> None:
        if HEADER_SIZE + size > min(self.options.max_request_size, self._budget.limit):
            raise RecordTooLarge(
                f"a record may need {size} bytes, more than max.request.size"
                f" = {self.options.max_request_size} or buffer.memory = {self._budget.limit}"
            )

    def _use(self, topic: str) -> None:
        if topic not in self._used:
            self._cluster.watch([topic])
        self._used[topic] = self._clock.monotonic()

    def _is_idle(self, topic: str) -> bool:
        """Return whether metadata requests may omit the topic: no record was sent to it for
        metadata.max.idle.ms, and no batch or call of `send` waits. Otherwise a request could
        recreate a deleted topic."""
        idle_s = self._clock.monotonic() - self._used.get(topic, -math.inf)
        limit_s = max(self.options.metadata_max_idle_ms, self.options.max_block_ms) / 1_000
        if idle_s <= limit_s or self._accumulator.holds(topic):
            return False
        self._used.pop(topic, None)
        return True

    async def _give_way(self) -> None:
        """Yield to the event loop once, so that the sender and other tasks run."""
        self._sent_in_turn = 0
        await asyncio.sleep(0)

    async def _topic(self, name: str, partition: int | None, deadline: Deadline) -> TopicInfo:
        known = self._cluster.view.topics.get(name)
        if known is None or known.error != ErrorCode.NONE or not known.partitions:
            known = await self._cluster.topic(name, deadline)
        if partition is not None and partition not in known.partitions:
            try:
                await self._cluster.refreshed(deadline.remaining_s())
            except TimeoutError:
                pass
            known = self._cluster.view.topics.get(name, known)
            if partition not in known.partitions:
                raise TopicUnavailable(
                    f"topic {name} has {len(known.partitions)} partitions, no partition {partition}"
                )
        return known

    def _choose(self, topic: TopicInfo, key: bytes | None, size: int) -> int:
        return self._partitioner.choose(
            topic.name,
            key,
            size,
            partition_count=len(topic.partitions),
            available=[
                number for number, info in topic.partitions.items() if info.leader != NO_LEADER
            ],
        )

    async def _wait_for_memory(self, size: int, deadline: Deadline) -> None:
        self._sender.wake()
        try:
            await self._budget.take(size, deadline.remaining_s())
        except TimeoutError:
            text = (
                f"buffer.memory = {self._budget.limit} stayed full for max.block.ms"
                f" = {self.options.max_block_ms}"
            )
            problems = self._sender.leader_problems()
            more = f"; and {len(problems) - 1} more partitions" if len(problems) > 1 else ""
            raise BufferExhausted("; ".join([text, *problems[:1]]) + more) from None
        try:
            self._check_running()
        except Closed:
            self._budget.give_back(size)
            raise


def _octets(value: Buffer | None, what: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"the {what} of a record must be bytes, not {type(value).__name__}")


def _time(timestamp_ms: int) -> int:
    if not 0 <= (time := operator.index(timestamp_ms)) <= _TIMESTAMP_MAX:
        raise ValueError(f"timestamp_ms is {time}, expected ms since 1970 (0 or more), or None")
    return time


def _offset(value: OffsetAndMetadata | int) -> OffsetAndMetadata:
    offset = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    if offset.offset < 0:
        raise ValueError(f"the offset to commit is {offset.offset}, expected 0 or more")
    return offset


def _headers(headers: HeadersLike) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((_name(name), _octets(content, f"header {name}")) for name, content in pairs)


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header name must be str, not {type(name).__name__}")
    if not name.isascii():
        name.encode()  # a UnicodeEncodeError is a ValueError
    return name
