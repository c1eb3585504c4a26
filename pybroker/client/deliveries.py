"""Deliveries: awaitables of the positions of sent records.

All records of a batch have one outcome. A delivery refers to its batch, and makes the position of
its record from this outcome when the application asks for it.
"""

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
    """The position of a record that the broker has stored. `offset` is -1 if it is unknown, as
    always with acks=0. `timestamp` is in ms since 1970: the producer's, or the broker's for a topic
    with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a batch that the broker has stored. `base_offset` is the offset of the first
    record, -1 if it is unknown. `append_time` is the timestamp of all records for a topic with
    LogAppendTime, otherwise -1."""

    base_offset: int
    append_time: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a batch that was not delivered. `definite` is false if it may be in the
    log."""

    reason: str
    definite: bool
    cause: BaseException | None


Outcome = Stored | Failed


class Waiter:
    """A future that waits for the outcome of one record, which has the place `index` in its
    batch."""

    __slots__ = ("future", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class DeliveryBatch(Protocol):
    """The batch of a delivery."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def outcome(self) -> Outcome | None: ...

    @property
    def waiters(self) -> list[Waiter]: ...

    def at(self, index: int) -> tuple[DeliveryBatch, int]:
        """Return the batch that now has the record with the place `index` in this batch, and the
        record's place there. If this batch was split, the record is in another batch."""


class Delivery(RecordPlace):
    """The delivery of one record. `await delivery` returns its RecordMetadata, or raises
    DeliveryFailed.

    A delivery can be awaited several times, also by `asyncio.gather`. If a task that awaits it is
    cancelled, the record is still sent. `asyncio.wait` needs futures: give it
    `asyncio.ensure_future(delivery)`.
    """

    __slots__ = ()

    _batch: DeliveryBatch

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        yield from self.wait()
        return self.result()

    def wait(self) -> Generator[object, None, None]:
        """Wait until the outcome is known. Unlike `await`, this raises no DeliveryFailed."""
        batch, index = self._batch.at(self._index)
        if batch.outcome is None:
            waiter = Waiter(index)
            batch.waiters.append(waiter)
            yield from waiter.future

    def done(self) -> bool:
        """Return whether the record was delivered or has failed."""
        return self._batch.at(self._index)[0].outcome is not None

    def result(self) -> RecordMetadata:
        """Return the position of the record. Raises DeliveryFailed, and
        asyncio.InvalidStateError if the outcome is not known yet."""
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
        """Return the failure of the record, None if it was delivered. Raises
        asyncio.InvalidStateError if the outcome is not known yet."""
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
    """`count` consecutive records of one call of `send_many`, in one batch from the place `first`
    on."""

    batch: DeliveryBatch
    first: int
    count: int


class Deliveries(Sequence[Delivery]):
    """The deliveries of the records of one call of `send_many`, in the order of the call.

    `await deliveries` returns the RecordMetadata of all records. It waits until each record has an
    outcome, and then raises DeliveryFailed if a record has failed.
    """

    def __init__(
        self, timestamp: int, places: Sequence[int], runs: Mapping[int, Iterable[Run]]
    ) -> None:
        """All records have the same `timestamp`. `places` has the partition of each record. `runs`
        has the records of each partition in the same order, as runs."""
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
