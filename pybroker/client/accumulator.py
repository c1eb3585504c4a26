"""The producer's unsent records: for each partition a queue of batches, in the order of `send`. All
times are in seconds of the monotonic clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pybroker.client.deliveries import Outcome, Waiter
from pybroker.client.sequences import SequenceState
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import HEADER_SIZE
from pybroker.records.record import Record
from pybroker.records.record_buffer import RecordBuffer


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A batch of records for one partition.

    - `ordinal`: batches are sent in this order. The `halves` of a split batch have its ordinal with
      0 or 1 appended.
    - `base_sequence`: -1 until an idempotent producer first sends the batch. A retry keeps it.
    - `maybe_written`: an earlier attempt may have written the batch to the log.
    - `expired`: the records have failed, but a request with the batch is in flight.
    - `payload`: the compressed `records`.
    - `memory`: bytes taken from the memory budget.
    - `outcome`: None until the batch is delivered or has failed.
    """

    topic_partition: TopicPartition
    ordinal: tuple[int, ...]
    created: float
    records: RecordBuffer = field(default_factory=RecordBuffer)
    memory: int = 0
    closed: bool = False
    attempts: int = 0
    next_try: float = 0.0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    payload: bytes | None = None
    encoded: bytes | None = None
    maybe_written: bool = False
    expired: bool = False
    last_error: BaseException | None = None
    halves: tuple[ProducerBatch, ProducerBatch] | None = None
    outcome: Outcome | None = None
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of records."""
        return self.records.count

    @property
    def size(self) -> int:
        """The size of the batch before compression, in bytes."""
        return HEADER_SIZE + self.memory

    @property
    def settled(self) -> bool:
        """Whether each record has an outcome."""
        if self.halves is not None:
            return all(half.settled for half in self.halves)
        return self.outcome is not None

    def at(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch that now contains the record with the index `index` in this batch, and
        the record's index there. If this batch was split, the record is in another batch."""
        batch = self
        while batch.halves is not None:
            first, second = batch.halves
            batch, index = (first, index) if index < first.count else (second, index - first.count)
        return batch, index

    def update_memory(self) -> int:
        """Set `memory` to the size of the records, and return the increase."""
        before, self.memory = self.memory, self.records.size
        return self.memory - before

    def settle(self, outcome: Outcome) -> None:
        """Set the outcome of all records and release their memory. Do nothing if the batch already
        has an outcome."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self.records.release()
        self.payload = self.encoded = None
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Return whether a task waits for the outcome."""
        return any(not waiter.future.done() for waiter in self.waiters)

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence >= 0

    @property
    def may_be_split(self) -> bool:
        """Return whether the batch may be split. A batch that has sequence numbers and may already
        have been written must stay whole, because a broker would not recognize its halves as
        duplicates."""
        is_known_again = self.has_sequence and self.maybe_written
        return self.count > 1 and not self.expired and not is_known_again

    def forget_sequence(self) -> None:
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.encoded = None


@dataclass(frozen=True, slots=True)
class Appended:
    """The place of an appended record: `index` in `batch`. `size` is in bytes. `began` is true if
    the record has begun a new batch."""

    batch: ProducerBatch
    index: int
    size: int
    began: bool

    @property
    def filled(self) -> bool:
        """Return whether the batch has no space for another record as large as its last record."""
        return self.batch.records.full


class PartitionQueue:
    """The batches of one partition: `waiting` to be sent, oldest first, or `in_flight` without a
    response. `last` is the newest batch, and accepts records until it is closed."""

    __slots__ = (
        "_bytes_before", "in_flight", "last", "next_ordinal", "sequences", "topic_partition",
        "waiting",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.sequences = SequenceState()
        self.next_ordinal = 0
        self.last: ProducerBatch | None = None
        self._bytes_before = 0

    @property
    def bytes_total(self) -> int:
        """The size of all records that the queue has ever accepted, in bytes."""
        return self._bytes_before + (self.last.memory if self.last is not None else 0)

    @property
    def empty(self) -> bool:
        """Return whether no batch waits or is in flight."""
        return not self.waiting and not self.in_flight

    def begin(self, batch: ProducerBatch) -> None:
        """Close the last batch, and add `batch` behind it as the new last batch."""
        self._bytes_before = self.bytes_total
        if self.last is not None:
            self.last.closed = True
        self.last = batch
        self.next_ordinal += 1
        self.waiting.append(batch)

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a waiting batch, which will not be sent."""
        batch.closed = True
        self.waiting.remove(batch)

    def put_back(self, batch: ProducerBatch) -> None:
        """Move `batch` from `in_flight` back to `waiting`, before all later batches."""
        self.in_flight.remove(batch)
        self.insert(batch)

    def insert(self, batch: ProducerBatch) -> None:
        """Insert `batch` into `waiting` by its ordinal."""
        place = sum(1 for other in self.waiting if other.ordinal < batch.ordinal)
        self.waiting.insert(place, batch)

    def has_numbers_before(self, batch: ProducerBatch) -> bool:
        """Return whether an earlier batch, waiting or in flight, has a sequence number."""
        return any(
            other.has_sequence and other.ordinal < batch.ordinal
            for other in (*self.in_flight, *self.waiting)
        )

    def lost_sequence(self, batch: ProducerBatch, code: ErrorCode) -> bool:
        """Return whether the error code means that the broker no longer knows the producer's
        sequence numbers. OUT_OF_ORDER_SEQUENCE_NUMBER means this only if the broker has responded
        to all earlier batches."""
        if not batch.has_sequence:
            return False
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            first = all(
                other.ordinal >= batch.ordinal
                for other in (*self.in_flight, *self.waiting)
                if other.has_sequence
            )
            return self.sequences.is_next(batch.base_sequence) or (
                self.sequences.unresolved and first
            )
        return code == ErrorCode.UNKNOWN_PRODUCER_ID

    def holds_sequences(self) -> bool:
        """Return whether any waiting or in-flight batch has a sequence number."""
        return any(batch.has_sequence for batch in (*self.in_flight, *self.waiting))


class Accumulator:
    """The unacknowledged batches of a producer, in one queue for each partition. `flushing` is the
    number of running `flush` calls; above 0, batches do not wait for linger.ms."""

    def __init__(
        self, *, batch_size: int, linger_s: float, idempotent: bool, in_flight_max: int
    ) -> None:
        self._batch_size = batch_size
        self._linger_s = linger_s
        self._idempotent = idempotent
        self._in_flight_max = in_flight_max if idempotent else 1
        self.records_max = batch_size - HEADER_SIZE
        """The maximum size of a batch's records in bytes. A single record may exceed it."""
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        """All queues that are not empty. It may also have queues that have become empty since the
        last look."""
        self.flushing = 0

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the queue of a partition."""
        queue = self.queues.get(topic_partition)
        if queue is None:
            queue = self.queues[topic_partition] = PartitionQueue(topic_partition)
        return queue

    def append(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        now: float,
    ) -> Appended:
        """Add a record to the last batch of `queue`, or to a new batch. Raises the errors of
        `RecordBuffer.append`. An error leaves the queue unchanged."""
        last = queue.last
        if last is not None and not last.closed:
            index = last.records.append(timestamp, key, value, headers, self.records_max)
            if index >= 0:
                return Appended(last, index, last.update_memory(), began=False)
        batch = ProducerBatch(queue.topic_partition, (queue.next_ordinal,), created=now)
        batch.records.append(timestamp, key, value, headers, self.records_max)
        size = batch.update_memory()
        self.begin(queue, batch)
        return Appended(batch, 0, size, began=True)

    def begin(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Add `batch` to the end of the queue, and close the batch before it."""
        queue.begin(batch)
        self._active[queue.topic_partition] = queue

    def active(self) -> list[PartitionQueue]:
        """Return the queues that are not empty."""
        found = [queue for queue in self._active.values() if not queue.empty]
        if len(found) < len(self._active):
            self._active = {queue.topic_partition: queue for queue in found}
        return found

    def ready(self, now: float) -> Iterator[PartitionQueue]:
        """Yield the queues whose oldest waiting batch may be sent at the time `now`."""
        for queue in self.active():
            if queue.waiting and self._may_send(queue) and self._due(queue) <= now:
                yield queue

    def next_due(self, now: float) -> float | None:
        """Return the earliest time after `now` at which a waiting batch may be sent; None if no
        batch becomes ready after `now`."""
        moments = [
            due
            for queue in self.active()
            if queue.waiting and self._may_send(queue) and (due := self._due(queue)) > now
        ]
        return min(moments, default=None)

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Move the oldest waiting batch to the batches in flight, close it, and return it."""
        batch = queue.waiting.popleft()
        batch.closed = True
        queue.in_flight.append(batch)
        return batch

    @property
    def outstanding(self) -> bool:
        """Return whether any batch of any partition waits or is in flight."""
        return bool(self.active())

    @property
    def waiting(self) -> bool:
        """Return whether any batch of any partition waits to be sent."""
        return any(queue.waiting for queue in self._active.values())

    def holds(self, topic: str) -> bool:
        """Return whether any batch of the topic waits or is in flight."""
        return any(queue.topic_partition.topic == topic for queue in self.active())

    def batches(self) -> list[ProducerBatch]:
        """Return all batches that wait or are in flight, except expired ones."""
        return [
            batch
            for queue in self.active()
            for batch in (*queue.in_flight, *queue.waiting)
            if not batch.expired
        ]

    def _due(self, queue: PartitionQueue) -> float:
        """Return the time at which the oldest waiting batch may be sent."""
        batch = queue.waiting[0]
        if batch.attempts:
            return batch.next_try
        full = batch.closed or len(queue.waiting) > 1 or batch.records.full
        if full or self.flushing:
            return batch.created
        return batch.created + self._linger_s

    def _may_send(self, queue: PartitionQueue) -> bool:
        if len(queue.in_flight) >= self._in_flight_max:
            return False
        if not self._idempotent:
            return True
        state = queue.sequences
        batch = queue.waiting[0]
        # A broker accepts any first sequence number of an unknown producer. Before a batch is
        # acknowledged, a new leader would accept the second batch without the first.
        if queue.in_flight and state.last_acknowledged < 0:
            return False
        # A batch to an earlier leader may wait long for its response. A broker recognizes
        # duplicates of the last five batches only, so all batches in flight must be among them.
        oldest = min((other.ordinal for other in queue.in_flight), default=batch.ordinal)
        if batch.ordinal[0] - oldest[0] >= self._in_flight_max:
            return False
        if state.restarting or (state.unresolved and not batch.has_sequence):
            return False
        # A retried batch waits for all earlier batches, because the broker would reject a gap.
        return not (
            batch.has_sequence and any(other.ordinal < batch.ordinal for other in queue.in_flight)
        )

    def split(self, queue: PartitionQueue, batch: ProducerBatch, records: Sequence[Record]) -> None:
        """Replace `batch`, which is in flight, with two waiting batches without sequence numbers.
        `records` are all records of `batch`, at least two."""
        queue.in_flight.remove(batch)
        middle = len(records) // 2
        first, second = (
            self._half(batch, number, part)
            for number, part in enumerate((records[:middle], records[middle:]))
        )
        second.memory = batch.memory - first.memory
        for waiter in batch.waiters:
            half, waiter.index = (
                (first, waiter.index) if waiter.index < middle else (second, waiter.index - middle)
            )
            half.waiters.append(waiter)
        batch.waiters = []
        batch.halves = first, second
        queue.insert(first)
        queue.insert(second)

    @staticmethod
    def _half(batch: ProducerBatch, number: int, records: Sequence[Record]) -> ProducerBatch:
        half = ProducerBatch(
            batch.topic_partition,
            (*batch.ordinal, number),
            created=batch.created,
            closed=True,
            maybe_written=batch.maybe_written,
        )
        for record in records:
            half.records.append(
                record.timestamp, record.key, record.value, record.headers, batch.memory
            )
        half.update_memory()
        return half
