"""Appends single records to the open batches of a producer, in Python. `_open_batches.pxi` does the
same in Cython: change both together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any, Generic, Protocol, TypeVar

from pybroker.records._pure_record_buffer import RecordBuffer, partition_of_key
from pybroker.records.record import Headers

PlaceT = TypeVar("PlaceT", bound="RecordPlace")


class OpenBatch(Protocol):
    """The newest batch of a partition. The batch accepts records until `closed` is True. `memory`
    is the number of bytes that the batch has taken from the budget."""

    records: RecordBuffer
    memory: int
    closed: bool


class BatchQueue(Protocol):
    """The batches of a partition."""

    @property
    def last(self) -> OpenBatch | None: ...


class TopicRoute(Protocol):
    """The partitions of a topic. `queues` has partition number -> its batches, for partitions in
    use. Records without a key go to `sticky`."""

    @property
    def partition_count(self) -> int: ...

    @property
    def queues(self) -> Mapping[int, BatchQueue]: ...

    @property
    def sticky(self) -> BatchQueue | None: ...


class Budget(Protocol):
    """The memory of all batches. `used` is in bytes, `waiting` has the calls that wait for free
    memory."""

    used: int

    @property
    def waiting(self) -> Sized: ...


class RecordPlace:
    """The place of an appended record: the batch, the record's index in the batch, and the record's
    timestamp in ms since 1970."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: Any, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp


class OpenBatchAppender(Generic[PlaceT]):
    """Appends single records to open batches, and returns the place of each record as a
    `place_type`.

    The caller adds and removes topics in `routes`. `budget` counts the bytes of memory that all
    batches use. While they use more than `used_max`, no record is appended. `records_max` is
    the maximum size in bytes of all records of a batch.

    `check_open` raises an exception if no record may be appended. `check_time` raises one if a
    given timestamp is invalid. `wall_ns` returns ns since 1970. `on_filled` is called after a
    record has filled its batch.
    """

    def __init__(
        self,
        place_type: type[PlaceT],
        routes: Mapping[str, TopicRoute],
        budget: Budget,
        used_max: int,
        records_max: int,
        *,
        has_partitioner: bool,
        check_open: Callable[[], object] | None,
        check_time: Callable[[int], int],
        wall_ns: Callable[[], int],
        on_filled: Callable[[], object],
    ) -> None:
        if not issubclass(place_type, RecordPlace):
            raise TypeError(f"{place_type.__name__} is no subclass of RecordPlace")
        self._routes = routes
        self._place_type = place_type
        self._budget = budget
        self._used_max = used_max
        self._records_max = records_max
        self._has_partitioner = has_partitioner
        self._check_open = check_open
        self._check_time = check_time
        self._wall_ns = wall_ns
        self._on_filled = on_filled

    def append(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> PlaceT | None:
        """Append the record to the last batch of its partition, and return the record's place.
        Append nothing and return None in these cases:

        - The topic is not in `routes`.
        - Memory is short.
        - The partition depends on the application's partitioner, or on a key that is not bytes.
        - The partition has no open batch with room.

        Raises the errors of `RecordBuffer.append`.
        """
        route = self._routes.get(topic)
        budget = self._budget
        if route is None or budget.used > self._used_max or budget.waiting:
            return None
        if self._check_open is not None:
            self._check_open()
        if partition is not None:
            queue = route.queues.get(partition)
        elif self._has_partitioner:
            return None  # the partitioner is called once for a record, not here and again later
        elif key is None:
            queue = route.sticky
        elif type(key) is bytes:
            queue = route.queues.get(partition_of_key(key, route.partition_count))
        else:
            return None
        batch = None if queue is None else queue.last
        if batch is None or batch.closed:
            return None
        if timestamp_ms is None:
            timestamp = self._wall_ns() // 1_000_000
        else:
            timestamp = self._check_time(timestamp_ms)
        records = batch.records
        index = records.append(timestamp, key, value, headers, self._records_max)
        if index < 0:
            return None
        size = records.size
        budget.used += size - batch.memory
        batch.memory = size
        if records.full:
            self._on_filled()
        return self._place_type(batch, index, timestamp)
