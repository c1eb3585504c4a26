"""Records before they are sent: collected into one open batch for each partition, and queued.

Event in, state out: nothing here waits, sends or reads a clock. All times are seconds of the
monotonic clock, given by the caller. The order of a partition's queue is the order of `send`.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pybroker.client.sequences import SequenceState
from pybroker.model import TopicPartition
from pybroker.records.batch import HEADER_SIZE
from pybroker.records.record import Headers


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of a stored record. `offset` is -1 if the broker does not return one (acks=0);
    `timestamp` in ms since 1970, the broker's for a topic with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record without an outcome yet."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    delivery: asyncio.Future[RecordMetadata]
    size: int


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records of one partition that are sent together.

    `ordinal` is the batch's place among all batches of its partition; the halves of a split batch
    append 0 and 1 to its ordinal. `base_sequence` is -1 until an idempotent producer first sends
    the batch, and then stays the same through all retries, unless the partition's sequences start
    again. `maybe_written`: an attempt ended without telling whether the batch is in the log.
    `expired`: its records have failed, but an answer is still awaited.
    """

    topic_partition: TopicPartition
    ordinal: tuple[int, ...]
    created: float
    records: list[PendingRecord] = field(default_factory=list)
    size: int = HEADER_SIZE
    closed: bool = False
    attempts: int = 0
    next_try: float = 0.0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    encoded: bytes | None = None
    maybe_written: bool = False
    expired: bool = False
    last_error: BaseException | None = None

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence >= 0

    def forget_sequence(self) -> None:
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.encoded = None


class Appended(enum.IntEnum):
    """The effect of a record on the batches of its partition."""

    JOINED = 0
    """The record is in a batch that has room for more. The sender knows of that batch."""
    BEGAN = 1
    """The record has begun a batch: the sender has to check it."""
    FILLED = 2
    """The record's batch has no room for another record of its size."""


class PartitionQueue:
    """The batches of one partition: waiting (oldest first) and in flight."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.sequences = SequenceState()
        self.next_ordinal = 0

    def put_back(self, batch: ProducerBatch) -> None:
        """Put a batch that is sent again back in its old place: before all later ones."""
        self.in_flight.remove(batch)
        self.insert(batch)

    def insert(self, batch: ProducerBatch) -> None:
        """Add a batch to the waiting ones in its place."""
        place = sum(1 for other in self.waiting if other.ordinal < batch.ordinal)
        self.waiting.insert(place, batch)

    def has_numbers_before(self, batch: ProducerBatch) -> bool:
        """Whether an earlier batch with a sequence has no outcome yet."""
        return any(
            other.has_sequence and other.ordinal < batch.ordinal
            for other in (*self.in_flight, *self.waiting)
        )

    def holds_sequences(self) -> bool:
        """Whether any batch with a sequence has no outcome yet."""
        return any(batch.has_sequence for batch in (*self.in_flight, *self.waiting))


class Accumulator:
    """All partitions' queues.

    Only the last batch of a queue is open; a batch closes when the next record does not fit, or
    when it is taken to be sent.
    """

    def __init__(
        self, *, batch_size: int, linger_s: float, idempotent: bool, in_flight_max: int
    ) -> None:
        self._batch_size = batch_size
        self._linger_s = linger_s
        self._idempotent = idempotent
        self._in_flight_max = in_flight_max if idempotent else 1
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.flushing = 0

    def append(
        self, topic_partition: TopicPartition, record: PendingRecord, now: float
    ) -> Appended:
        """Add a record."""
        queue = self.queues.get(topic_partition)
        if queue is None:
            queue = self.queues[topic_partition] = PartitionQueue(topic_partition)
        last = queue.waiting[-1] if queue.waiting else None
        done = Appended.JOINED
        if last is None or last.closed or last.size + record.size > self._batch_size:
            if last is not None:
                last.closed = True
            last = ProducerBatch(topic_partition, (queue.next_ordinal,), created=now)
            queue.next_ordinal += 1
            queue.waiting.append(last)
            done = Appended.BEGAN
        last.records.append(record)
        last.size += record.size
        return Appended.FILLED if last.size + record.size > self._batch_size else done

    def ready(self, now: float) -> Iterator[PartitionQueue]:
        """Yield the queues whose first batch may be sent now."""
        for queue in self.queues.values():
            if queue.waiting and self._may_send(queue) and self._due(queue) <= now:
                yield queue

    def next_due(self, now: float) -> float | None:
        """Return the time when a batch that may be sent becomes due, if that is after `now`."""
        moments = [
            due
            for queue in self.queues.values()
            if queue.waiting and self._may_send(queue) and (due := self._due(queue)) > now
        ]
        return min(moments, default=None)

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Move the first batch of the queue to those in flight."""
        batch = queue.waiting.popleft()
        batch.closed = True
        queue.in_flight.append(batch)
        return batch

    @property
    def outstanding(self) -> bool:
        """Whether any batch waits or is in flight."""
        return any(queue.waiting or queue.in_flight for queue in self.queues.values())

    def holds(self, topic: str) -> bool:
        """Whether any batch of the topic waits or is in flight."""
        return any(
            key.topic == topic and bool(queue.waiting or queue.in_flight)
            for key, queue in self.queues.items()
        )

    def batches(self) -> list[ProducerBatch]:
        """Every batch without an outcome, waiting or in flight."""
        return [
            batch
            for queue in self.queues.values()
            for batch in (*queue.in_flight, *queue.waiting)
            if not batch.expired
        ]

    def _due(self, queue: PartitionQueue) -> float:
        """Return the time when the first batch of the queue is due."""
        batch = queue.waiting[0]
        if batch.attempts:
            return batch.next_try
        full = batch.closed or len(queue.waiting) > 1 or batch.size >= self._batch_size
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
        # A broker accepts any first sequence of a producer that it does not know. So before one is
        # acknowledged, a new leader would accept the second batch without the first.
        if queue.in_flight and state.last_acknowledged < 0:
            return False
        # A batch sent to an earlier leader may be unanswered for long. The broker recognises its
        # last few batches, so no batch may be sent that would make it forget that one.
        oldest = min((other.ordinal for other in queue.in_flight), default=batch.ordinal)
        if batch.ordinal[0] - oldest[0] >= self._in_flight_max:
            return False
        if state.restarting or (state.unresolved and not batch.has_sequence):
            return False
        # A batch that is sent again waits for all before it, or the broker would refuse it.
        return not (
            batch.has_sequence and any(other.ordinal < batch.ordinal for other in queue.in_flight)
        )

    def split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Replace a batch that is too large for the broker by two of half its records, in its place
        in the queue and without sequences. The batch must be in flight and have two or more
        records."""
        queue.in_flight.remove(batch)
        middle = len(batch.records) // 2
        for half_number, records in enumerate((batch.records[:middle], batch.records[middle:])):
            half = ProducerBatch(
                batch.topic_partition,
                (*batch.ordinal, half_number),
                created=batch.created,
                records=records,
                size=HEADER_SIZE + sum(record.size for record in records),
                closed=True,
                maybe_written=batch.maybe_written,
            )
            queue.insert(half)
