"""`Delivery`: an awaitable that gives the offset of a sent record, or the error. All records of a
batch have the same outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, overload

from pybroker.client.errors import DeliveryFailed
from pybroker.model import TopicPartition
from pybroker.records.open_batches import RecordPlace


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of a stored record. `offset` is -1 if unknown (acks=0). `timestamp` (ms since
    1970) is the producer's, or the broker's with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a stored batch. `base_offset` is -1 if unknown. `append_time` is -1 without
    LogAppendTime."""

    base_offset: int
    append_time: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a batch that was not acknowledged. If `definite` is true, the batch is
    certainly not in the log."""

    reason: str
    definite: bool
    cause: BaseException | None


Outcome = Stored | Failed


class Waiter:
    """A future for the outcome of the record `index` of a batch."""

    __slots__ = ("future", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class DeliveryBatch(Protocol):
    """The part of a producer's batch that a Delivery needs."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def outcome(self) -> Outcome | None: ...

    @property
    def waiters(self) -> list[Waiter]: ...

    def at(self, index: int) -> tuple[DeliveryBatch, int]:
        """Return the batch that now contains the record `index` of this batch, and the record's
        index there. Both may differ after a split of this batch."""


class Delivery(RecordPlace):
    """An awaitable for the acknowledgement of one record. `await delivery` returns its
    RecordMetadata, or raises DeliveryFailed.

    A Delivery can be awaited several times. If the waiting task is cancelled, the record is still
    sent. For `asyncio.wait` use `asyncio.ensure_future(delivery)`.
    """

    __slots__ = ()

    _batch: DeliveryBatch

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        yield from self.wait()
        return self.result()

    def wait(self) -> Generator[object, None, None]:
        """Wait until the outcome is known. Unlike `await delivery`, `wait` does not raise
        DeliveryFailed."""
        batch, index = self._batch.at(self._index)
        if batch.outcome is None:
            waiter = Waiter(index)
            batch.waiters.append(waiter)
            yield from waiter.future

    def done(self) -> bool:
        """Return whether the record was delivered or has failed."""
        return self._batch.at(self._index)[0].outcome is not None

    def result(self) -> RecordMetadata:
        """Return the position of the record. Raises DeliveryFailed if the delivery has failed, and
        asyncio.InvalidStateError while the outcome is unknown."""
        error = self.exception()
        if error is not None:
            raise error
        batch, index = self._batch.at(self._index)
        stored = batch.outcome
        assert isinstance(stored, Stored)
        topic, partition = batch.topic_partition
        offset = stored.base_offset + index if stored.base_offset >= 0 else -1
        timestamp = stored.append_time if stored.append_time >= 0 else self._timestamp
        return RecordMetadata(topic, partition, offset, timestamp)

    def exception(self) -> DeliveryFailed | None:
        """Return the failure of the record; None if delivered. Raises asyncio.InvalidStateError
        while the outcome is unknown."""
        batch, _ = self._batch.at(self._index)
        outcome = batch.outcome
        if outcome is None:
            raise asyncio.InvalidStateError(
                "the outcome of the record is not known yet: await the delivery first"
            )
        if isinstance(outcome, Stored):
            return None
        error = DeliveryFailed(batch.topic_partition, outcome.reason, definite=outcome.definite)
        error.__cause__ = outcome.cause
        return error

    def add_done_callback(self, observer: Callable[[Delivery], object]) -> None:
        """Let the event loop call `observer` with this delivery once the outcome is known."""
        batch, index = self._batch.at(self._index)
        waiter = Waiter(index)
        waiter.future.add_done_callback(lambda _: observer(self))
        if batch.outcome is not None:
            waiter.future.set_result(None)
        else:
            batch.waiters.append(waiter)


@dataclass(frozen=True, slots=True)
class Run:
    """The place of `count` consecutive records of one `send_many`: they are in `batch`, from the
    index `first` on."""

    batch: DeliveryBatch
    first: int
    count: int


class Deliveries(Sequence[Delivery]):
    """A Delivery for each record of one `send_many`, in order. `await deliveries` waits for all
    outcomes, then returns all RecordMetadata, or raises DeliveryFailed."""

    def __init__(
        self, timestamp: int, places: Sequence[int], runs: Mapping[int, Iterable[Run]]
    ) -> None:
        """`places` has the partition number of each record. `runs` maps a partition number to the
        partition's records, as runs of consecutive records (`Run`). Both are in the order of
        `send_many`."""
        self._timestamp = timestamp
        self._places = places
        self._runs = runs
        self._made: list[Delivery] | None = None

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._all())

    def __await__(self) -> Generator[object, None, list[RecordMetadata]]:
        for delivery in self:
            yield from delivery.wait()
        return [delivery.result() for delivery in self]

    def _all(self) -> list[Delivery]:
        if self._made is None:
            rest = {place: self._of_runs(runs) for place, runs in self._runs.items()}
            self._made = [next(rest[place]) for place in self._places]
        return self._made

    def _of_runs(self, runs: Iterable[Run]) -> Iterator[Delivery]:
        for run in runs:
            for index in range(run.first, run.first + run.count):
                yield Delivery(run.batch, index, self._timestamp)
