"""The records that the producer has not sent yet: for each partition a queue of batches, of which
the last one accepts more records.

This module does not wait, send or read a clock. The caller passes all times, in seconds of the
monotonic clock. A partition's queue has the records in the order of `send`.
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
    """The position of a record that the broker has stored. `offset` is -1 if it is unknown, as
    always with acks=0. `timestamp` is in ms since 1970: the producer's, or the broker's for a topic
    with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record that the application has sent and whose delivery is open. `timestamp` is in ms since
    1970, `size` is an upper bound of its bytes in a batch. `delivery` is the future that
    `Producer.send` returned."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    delivery: asyncio.Future[RecordMetadata]
    size: int


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A batch of records for one partition.

    `ordinal` is a tuple: the batches of a partition are sent in the order of their ordinals. The
    halves of a split batch have its ordinal with 0 and 1 appended. `base_sequence` is -1 until an
    idempotent producer first sends the batch. Retries keep it, unless the producer resets the
    partition's sequence numbers. `maybe_written` is true if an earlier attempt may have written the
    batch to the log. `expired` is true if the records have failed, but the producer still waits for
    the response.
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
    """The effect of `Accumulator.append` on the batches of the record's partition."""

    JOINED = 0
    """The record was added to the last batch, which the sender knows already."""
    BEGAN = 1
    """The record is the first of a new batch, which the sender must schedule."""
    FILLED = 2
    """The batch of the record has no space for another record of the same size, so the sender may
    send the batch at once."""


class PartitionQueue:
    """The batches of one partition. `waiting` has those that wait to be sent, oldest first.
    `in_flight` has those that were sent and whose response the producer awaits."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.sequences = SequenceState()
        self.next_ordinal = 0

    def put_back(self, batch: ProducerBatch) -> None:
        """Move `batch` from the batches in flight back into the queue, before all later batches, so
        that the sender sends it again."""
        self.in_flight.remove(batch)
        self.insert(batch)

    def insert(self, batch: ProducerBatch) -> None:
        """Insert `batch` into the waiting batches, at the place that its ordinal gives."""
        place = sum(1 for other in self.waiting if other.ordinal < batch.ordinal)
        self.waiting.insert(place, batch)

    def has_numbers_before(self, batch: ProducerBatch) -> bool:
        """Return whether any batch that is earlier than `batch`, and has a sequence number, waits
        or is in flight."""
        return any(
            other.has_sequence and other.ordinal < batch.ordinal
            for other in (*self.in_flight, *self.waiting)
        )

    def holds_sequences(self) -> bool:
        """Return whether any waiting or in-flight batch has a sequence number."""
        return any(batch.has_sequence for batch in (*self.in_flight, *self.waiting))


class Accumulator:
    """The unsent and unanswered batches of a producer, in one queue for each partition.

    Only the last batch of a queue accepts records. The batch is closed when the next record does
    not fit, or when the sender sends the batch. `flushing` is the number of calls of `flush` that
    wait. While it is above 0, no batch waits for linger.ms.
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
        """Add a record to the last batch of its partition, or to a new batch if it does not fit.
        Return the effect on the partition's batches."""
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
        """Yield the partition queues whose oldest waiting batch the sender may send at the time
        `now`."""
        for queue in self.queues.values():
            if queue.waiting and self._may_send(queue) and self._due(queue) <= now:
                yield queue

    def next_due(self, now: float) -> float | None:
        """Return the earliest time after `now` at which a waiting batch becomes due, or None if
        there is no such batch."""
        moments = [
            due
            for queue in self.queues.values()
            if queue.waiting and self._may_send(queue) and (due := self._due(queue)) > now
        ]
        return min(moments, default=None)

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        """Move the oldest waiting batch of the queue to its batches in flight, close it, and return
        it."""
        batch = queue.waiting.popleft()
        batch.closed = True
        queue.in_flight.append(batch)
        return batch

    @property
    def outstanding(self) -> bool:
        """Return whether any batch of any partition waits or is in flight."""
        return any(queue.waiting or queue.in_flight for queue in self.queues.values())

    def holds(self, topic: str) -> bool:
        """Return whether any batch of the topic waits or is in flight."""
        return any(
            key.topic == topic and bool(queue.waiting or queue.in_flight)
            for key, queue in self.queues.items()
        )

    def batches(self) -> list[ProducerBatch]:
        """Return all batches that wait or are in flight, without those that have expired."""
        return [
            batch
            for queue in self.queues.values()
            for batch in (*queue.in_flight, *queue.waiting)
            if not batch.expired
        ]

    def _due(self, queue: PartitionQueue) -> float:
        """Return the time at which the oldest waiting batch of the queue may be sent. A new batch
        may be sent at once if it is full or a call of `flush` waits, otherwise linger.ms after its
        creation. A batch that is sent again may be sent after its backoff."""
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

    def split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Replace `batch`, which is in flight and too large for the broker, with two batches of
        half its records. Both wait at its place in the queue, without sequence numbers. The batch
        must have at least two records."""
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
