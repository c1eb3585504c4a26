"""The records of one call of `Producer.send_many`, which are appended many at a time."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.client.accumulator import Accumulator, ProducerBatch
from pybroker.client.deliveries import Deliveries, Run
from pybroker.client.errors import TopicUnavailable
from pybroker.client.metadata import TopicInfo
from pybroker.client.routes import Route
from pybroker.records.builder import record_size_max
from pybroker.records.record_buffer import ByteColumn, RecordBuffer, append_records


def check_partition(topic: TopicInfo, partition: int) -> None:
    """Raises TopicUnavailable if the topic has no such partition."""
    if partition not in topic.partitions:
        raise TopicUnavailable(
            f"topic {topic.name} has no partition {partition}, expected 0 to"
            f" {len(topic.partitions) - 1}"
        )


class BulkAppend:
    """The records of one call of `send_many`. `position` is the index of the first record that is
    not appended yet."""

    def __init__(
        self,
        accumulator: Accumulator,
        topic: str,
        values: ByteColumn,
        keys: ByteColumn | None,
        timestamp: int,
    ) -> None:
        self._accumulator = accumulator
        self.topic = topic
        self.values = values
        self.keys = keys
        self.chosen: list[int | None] | None = None
        """The partition of each record, None for the default choice."""
        self._timestamp = timestamp
        self.position = 0
        self._places: list[int] = []
        self._runs: dict[int, list[Run]] = {}
        self._open: dict[int, tuple[ProducerBatch, int]] = {}
        """By partition, the batch that accepts records, and the place of its first record of this
        call."""

    @property
    def done(self) -> bool:
        return self.position == len(self.values)

    @property
    def next_size_max(self) -> int:
        """An upper bound of the number of bytes that the next record occupies in a batch."""
        key = None if self.keys is None else self.keys[self.position]
        return record_size_max(key, self.values[self.position])

    def deliveries(self) -> Deliveries:
        """Return the deliveries of the appended records."""
        return Deliveries(self._timestamp, self._places, self._runs)

    def append(self, route: Route, partition: int | None, room: int, now: float) -> int:
        """Append records of at most `room` bytes in total, and return their size. If `partition` is
        None, the partitioner chooses the partitions. `now` is in seconds (monotonic clock)."""
        numbers: Sequence[int] = range(route.partition_count) if partition is None else [partition]
        buffers: list[RecordBuffer | None] = [None] * len(numbers)
        chosen = self.chosen if partition is None else None
        without_key = 0
        if partition is None:
            without_key = route.choose(None, 0).topic_partition.partition
        appended = 0
        while not self.done:
            self.position, at, size = append_records(
                buffers, self.values, self.keys, chosen, self._timestamp, self.position,
                without_key, self._accumulator.records_max, room - appended, self._places,
            )  # fmt: skip
            appended += size
            if self.done or appended + self.next_size_max > room:
                break
            full = buffers[at]
            self._end_run(at)  # the route counts the bytes of ended runs
            if partition is None and self._fits_any_partition(self.position):
                queue = route.choose(None, self.next_size_max)
                at = without_key = queue.topic_partition.partition
                self._end_run(at)
            buffers[at] = self._next_buffer(route, at, numbers[at], full, now)
        for at in [*self._open]:
            self._end_run(at)
        return appended

    def check_partitions(self, topic: TopicInfo, partition: int | None) -> None:
        """Check that the topic still has the partitions of the remaining records. Raises
        TopicUnavailable."""
        if partition is not None:
            check_partition(topic, partition)
        elif self.chosen is not None:
            for chosen in {*self.chosen[self.position :]}:
                if chosen is not None:
                    check_partition(topic, chosen)

    def _fits_any_partition(self, index: int) -> bool:
        """Return whether the record may go to any partition: it has no key, and the application's
        partitioner has selected no partition for it."""
        is_chosen = self.chosen is not None and self.chosen[index] is not None
        return not is_chosen and (self.keys is None or self.keys[index] is None)

    def _next_buffer(
        self, route: Route, at: int, number: int, full: RecordBuffer | None, now: float
    ) -> RecordBuffer:
        """Return the buffer of the partition's last batch, or of a new batch if the last batch has
        no room. `full` is a buffer that is never returned, because it has no room for the next
        record."""
        queue = route.queue(number)
        batch = queue.last
        if batch is None or batch.closed or batch.records is full or batch.records.full:
            batch = ProducerBatch(queue.topic_partition, (queue.next_ordinal,), created=now)
            self._accumulator.begin(queue, batch)
        self._open[at] = (batch, batch.count)
        return batch.records

    def _end_run(self, at: int) -> None:
        opened = self._open.pop(at, None)
        if opened is not None:
            batch, first = opened
            batch.update_memory()
            self._runs.setdefault(at, []).append(Run(batch, first, batch.count - first))
