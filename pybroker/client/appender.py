"""Appends records to the producer's batches, after waiting for the metadata of a topic and for
memory."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from pybroker.client import defaults
from pybroker.client.accumulator import Accumulator
from pybroker.client.backoff import Deadline
from pybroker.client.budget import MemoryBudget
from pybroker.client.bulk import BulkAppend, check_partition
from pybroker.client.checked import CheckedRecord, checked_record, checked_time
from pybroker.client.cluster import Cluster
from pybroker.client.deliveries import Delivery
from pybroker.client.errors import (
    BufferExhausted,
    ClientError,
    Closed,
    RecordTooLarge,
    WouldBlock,
)
from pybroker.client.metadata import TopicInfo
from pybroker.client.options import ProducerOptions
from pybroker.client.routes import Route
from pybroker.client.sender import Sender
from pybroker.client.serializers import Serializers
from pybroker.client.transactions.manager import TransactionManager
from pybroker.errors import ErrorCode
from pybroker.records.batch import HEADER_SIZE
from pybroker.records.open_batches import OpenBatchAppender
from pybroker.records.record import Headers

PIECE_BYTES: Final = 1 << 20
"""The maximum size of the records of `send_many` that are appended in one turn of the event loop,
in bytes. Appending them takes about a millisecond with the compiled loops, several with the loops
in Python."""

Partitioner = Callable[[TopicInfo, bytes | None, bytes | None], int | None]
"""A function of an application that chooses the partition of a record. It gets the metadata of the
topic, the key and the value. None means the default choice."""


Join = Callable[[str, Any, Any, Headers, int | None, int | None], Delivery | None]


def _join_nothing(*_: object) -> None:
    """Append nothing, and return None. `Appender.join` is this function if the producer has
    serializers. Every record then goes to `Appender.prepared`, which serializes the record."""


class Appender:
    """Appends records to an accumulator's batches. `filled` becomes true when a record fills its
    batch. The producer resets `filled` when yielding to the event loop."""

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        accumulator: Accumulator,
        budget: MemoryBudget,
        sender: Sender,
        transactions: TransactionManager | None,
        serializers: Serializers | None,
        partitioner: Partitioner | None,
        check_running: Callable[[], None],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._clock = cluster.clock
        self._accumulator = accumulator
        self._budget = budget
        self._sender = sender
        self._transactions = transactions
        self._serializers = serializers
        self._partitioner = partitioner
        self._check_running = check_running
        self._routes: dict[str, Route] = {}
        """The routes of all topics in use."""
        self._current_routes: dict[str, Route] = {}
        """The routes of topics for which `join` may append records: their metadata is current, and
        the producer accepts records. `check_again` empties it."""
        cluster.add_listener(self.check_again)
        sender.on_break = self.check_again
        self._used: dict[str, float] = {}
        """The time of the last new batch of each topic, for metadata.max.idle.ms."""
        # A batch holds at most batch.size bytes more than a check of its memory has seen.
        self._open_batches = OpenBatchAppender(
            Delivery,
            self._current_routes,
            budget,
            used_max=budget.limit - options.batch_size,
            records_max=accumulator.records_max,
            has_partitioner=partitioner is not None,
            check_open=None if transactions is None else partial(transactions.check_open, "send"),
            check_time=checked_time,
            wall_ns=defaults.wall_ns_of(cluster.clock),
            on_filled=self._on_filled,
        )
        self.join: Join = self._open_batches.append if serializers is None else _join_nothing
        """Appends a record that can join the last batch of its partition, and returns its delivery.
        Returns None if the record needs a new batch, a check, metadata or memory."""
        self.filled = False

    def check_again(self) -> None:
        """Let the next record of each topic wait until the topic's metadata and the state of the
        producer have been checked again."""
        self._current_routes.clear()

    def _on_filled(self) -> None:
        self.filled = True
        self._sender.wake()

    def prepared(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery | CheckedRecord:
        """Serialize a record that `join` has not appended, and append it to an open batch. Return
        its `Delivery`. If no open batch takes the record, return the serialized record, checked.
        Raises SerializationFailed."""
        if self._serializers is not None:
            key, value = self._serializers.record(topic, headers, key, value, partition)
            delivery = self._open_batches.append(
                topic, value, key, headers, partition, timestamp_ms
            )
            if delivery is not None:
                return delivery
        return checked_record(value, key, headers, timestamp_ms)

    async def wait_and_append(
        self, topic: str, record: CheckedRecord, partition: int | None
    ) -> Delivery:
        """Wait for metadata and memory, and append the record."""
        self.check_size(record.size_max)
        self._check_running()
        number = None if self._transactions is None else self._transactions.check_open("send")
        self.use(topic)
        deadline = self.deadline()
        known = self._known(topic, partition)
        if known is None:
            known = await self.topic(topic, partition, deadline)
            self._check_running()
        if partition is None and self._partitioner is not None:
            partition = self._chosen(known, record.key, record.value)
        if not self._budget.try_take(record.size_max):
            await self._wait_for_memory(record.size_max, deadline)
        if self._transactions is not None:
            try:
                self._transactions.check_open("send", number)
            except ClientError:
                self._budget.give_back(record.size_max)
                raise
        return self._append(known, record, partition)

    def append_nowait(self, topic: str, record: CheckedRecord, partition: int | None) -> Delivery:
        """Append the record, or raise WouldBlock."""
        self.check_size(record.size_max)
        self._check_running()
        if self._transactions is not None:
            self._transactions.check_open("send_nowait")
        self.use(topic)
        known = self._known(topic, partition)
        if known is None:
            self._cluster.request_refresh()
            what = topic if partition is None else f"{topic} with partition {partition}"
            raise WouldBlock(f"the metadata of topic {what} is not known yet: await send()")
        if not self._budget.has(record.size_max):
            raise WouldBlock(f"buffer.memory = {self._budget.limit} is full: await send()")
        if partition is None and self._partitioner is not None:
            partition = self._chosen(known, record.key, record.value)
        self._budget.try_take(record.size_max)
        return self._append(known, record, partition)

    async def append_many(
        self, bulk: BulkAppend, partition: int | None, give_way: Callable[[], Awaitable[None]]
    ) -> None:
        """Append all records of `bulk`. If `partition` is None, the partitioner chooses the
        partition of each record. `give_way` lets other tasks run."""
        self._check_running()
        number = None if self._transactions is None else self._transactions.check_open("send_many")
        self.use(bulk.topic)
        deadline = self.deadline()
        known = await self.topic(bulk.topic, partition, deadline)
        if self._partitioner is not None and partition is None:
            keys = bulk.keys or [None] * len(bulk.values)
            bulk.chosen = [
                self._chosen(known, *each) for each in zip(keys, bulk.values, strict=True)
            ]
        while True:
            self._check_running()
            if self._transactions is not None:
                self._transactions.check_open("send_many", number)
            room = min(self._budget.free, PIECE_BYTES)
            now = self._clock.monotonic()
            self._budget.used += bulk.append(self._route(known), partition, room, now)
            self._sender.wake()
            if bulk.done:
                return
            await give_way()
            size = bulk.next_size_max
            if not self._budget.has(size):
                await self._wait_for_memory(size, deadline, accepted=bulk.position)
                self._budget.give_back(size)
            latest = self._known(bulk.topic) or known
            if latest is not known:
                known = latest
                bulk.check_partitions(known, partition)

    def _append(self, topic: TopicInfo, record: CheckedRecord, partition: int | None) -> Delivery:
        """Append a record, for which `record.size_max` bytes were taken from the budget."""
        route = self._route(topic)
        if partition is None:
            queue = route.choose(record.key, record.size_max)
        else:
            queue = route.queue(partition)
        timestamp = self._clock.wall_ms() if record.timestamp is None else record.timestamp
        now = self._clock.monotonic()
        size = 0
        try:
            appended = self._accumulator.append(
                queue, timestamp, record.key, record.value, record.headers, now
            )
            size = appended.size
        finally:
            self._budget.give_back(record.size_max - size)
        self.filled |= appended.filled
        if appended.began or appended.filled:
            self._sender.wake()
        return Delivery(appended.batch, appended.index, timestamp)

    def _chosen(self, topic: TopicInfo, key: bytes | None, value: bytes | None) -> int | None:
        """Return the partition that the application's partitioner selects (None: the default
        partitioner selects). Raises ValueError if the topic has no such partition."""
        assert self._partitioner is not None
        chosen = self._partitioner(topic, key, value)
        if chosen is not None and chosen not in topic.partitions:
            raise ValueError(
                f"the partitioner chose partition {chosen!r} of topic {topic.name}, expected None"
                f" or a partition from 0 to {len(topic.partitions) - 1}"
            )
        return chosen

    def _route(self, topic: TopicInfo) -> Route:
        route = self._current_routes.get(topic.name)
        if route is None:
            route = self._routes.get(topic.name)
            if route is None:
                route = Route(
                    topic, self._cluster.rng, self._accumulator.records_max, self._accumulator.queue
                )
                self._routes[topic.name] = route
            else:
                route.update(topic)
            self._current_routes[topic.name] = route
        return route

    def check_size(self, size: int) -> None:
        if HEADER_SIZE + size > min(self._options.max_request_size, self._budget.limit):
            raise RecordTooLarge(
                f"the record may need {HEADER_SIZE + size} bytes with the batch header, expected at"
                f" most {self._options.max_request_size} (max.request.size) and at most"
                f" {self._budget.limit} (buffer.memory)"
            )

    def use(self, topic: str) -> None:
        if topic not in self._used:
            self._cluster.watch([topic])
        self._used[topic] = self._clock.monotonic()

    def is_idle(self, topic: str) -> bool:
        """Return whether metadata requests may omit the topic: no batch waits or is in flight, and
        no record was sent for max(metadata.max.idle.ms, max.block.ms)."""
        idle_s = self._clock.monotonic() - self._used.get(topic, -math.inf)
        limit_s = max(self._options.metadata_max_idle_ms, self._options.max_block_ms) / 1_000
        if idle_s <= limit_s or self._accumulator.holds(topic):
            return False
        self._used.pop(topic, None)
        return True

    def _known(self, topic: str, partition: int | None = None) -> TopicInfo | None:
        """Return the metadata of a topic. Return None if the topic is unknown, has an error, has no
        partitions, or lacks `partition`."""
        known = self._cluster.view.topics.get(topic)
        if known is None or known.error != ErrorCode.NONE or not known.partitions:
            return None
        return known if partition is None or partition in known.partitions else None

    def deadline(self) -> Deadline:
        """Return the deadline of a call that begins now: max.block.ms from now."""
        return Deadline(self._clock, self._options.max_block_ms)

    async def topic(self, name: str, partition: int | None, deadline: Deadline) -> TopicInfo:
        known = self._known(name) or await self._cluster.topic(name, deadline)
        if partition is not None and partition not in known.partitions:
            try:
                await self._cluster.refreshed(deadline.remaining_s())
            except TimeoutError:
                pass
            known = self._cluster.view.topics.get(name, known)
            check_partition(known, partition)
        return known

    async def _wait_for_memory(self, size: int, deadline: Deadline, accepted: int = 0) -> None:
        self._sender.wake()
        try:
            await self._budget.take(size, deadline.remaining_s())
        except TimeoutError:
            text = (
                f"the producer's memory (buffer.memory = {self._budget.limit}) was full"
                f" for max.block.ms = {self._options.max_block_ms}"
            )
            problems = self._sender.leader_problems()
            more = f"; and {len(problems) - 1} more partitions" if len(problems) > 1 else ""
            raise BufferExhausted(
                "; ".join([text, *problems[:1]]) + more, accepted=accepted
            ) from None
        try:
            self._check_running()
        except Closed:
            self._budget.give_back(size)
            raise
