"""A stream of records. One task of the application at a time reads the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Final, Protocol

from pybroker.classic.partition_owners import OwnedPartition
from pybroker.client.backoff import Deadline
from pybroker.client.errors import Closed, DeadlinePassed
from pybroker.errors import PybrokerError
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.records.consumed import ConsumerRecord

RECORDS_MAX: Final = 500
_WAIT_MS: Final = 60_000


class Certainty(Protocol):
    """Whether it is certain that no other member owns this member's partitions."""

    def is_certain(self) -> bool: ...

    def find_out(self) -> None:
        """Start a task that sends requests to ZooKeeper until it is certain that no other member
        owns this member's partitions. The task then wakes the streams."""


class Stream:
    """The records of some owned partitions, in order in each partition.

        async for record in stream:
            print(record.topic, record.partition, record.offset, record.value)

    One task at a time may read. A record counts as consumed when the task reads the next records,
    or calls `ClassicConsumer.commit`. Until then, a new owner of the partition reads the record
    again.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        certainty: Certainty,
        on_taken: Callable[[OwnedPartition], None],
        timeout_ms: int,
    ) -> None:
        self.name = name
        """The topic or pattern, and the number of the stream."""
        self._clock = clock
        self._certainty = certainty
        self._on_taken = on_taken
        self._timeout_ms = timeout_ms
        self._owned: dict[OwnedPartition, None] = {}
        self._given: dict[OwnedPartition, None] = {}
        self._news = asyncio.Event()
        self._failure: PybrokerError | None = None
        self._closed = False

    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned to the stream now."""
        return frozenset(owned.topic_partition for owned in self._owned)

    async def getmany(
        self, timeout_ms: int = 0, max_records: int = RECORDS_MAX
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return at most `max_records` records; {} if none arrives within `timeout_ms`. This call
        marks the records of earlier calls as consumed.

        Raises RebalanceFailed while the member cannot get its partitions. Also raises
        GroupIsCoordinated, DamagedRecords, and ResponseError for an error that is not retriable.
        """
        self._settle()
        deadline = Deadline(self._clock, timeout_ms)
        while True:
            self._news.clear()
            if self._closed:
                raise Closed("the consumer is closed")
            if self._certainty.is_certain():
                found = self._take(max_records)
                if found:
                    return found
                self._raise_problems()
            else:
                self._certainty.find_out()
            if deadline.passed:
                return {}
            try:
                async with asyncio.timeout(deadline.remaining_s()):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def getone(self) -> ConsumerRecord:
        """Wait for the next record and return it. Raises DeadlinePassed if none arrives within
        consumer.timeout.ms (-1: no limit). Also raises the errors of `getmany`."""
        timeout_ms = _WAIT_MS if self._timeout_ms < 0 else self._timeout_ms
        while True:
            for records in (await self.getmany(timeout_ms, 1)).values():
                return records[0]
            if self._timeout_ms >= 0:
                raise DeadlinePassed(
                    f"stream {self.name} got no record within consumer.timeout.ms={timeout_ms}"
                )

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        try:
            return await self.getone()
        except Closed:
            raise StopAsyncIteration from None

    # Called by the consumer

    def attach(self, owned: OwnedPartition) -> None:
        self._owned[owned] = None

    def detach(self, owned: OwnedPartition) -> None:
        self._owned.pop(owned, None)

    def settle_all(self) -> None:
        """Count all returned records as consumed."""
        self._settle()

    def wake(self) -> None:
        self._news.set()

    def fail(self, failure: PybrokerError | None) -> None:
        """After the queued records are returned, let reads raise `failure`. If `failure` is None,
        let reads wait for records again."""
        self._failure = failure
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    # Inside

    def _settle(self) -> None:
        for owned in self._given:
            owned.settle()
        self._given.clear()

    def _take(self, limit: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        room = limit
        for owned in list(self._owned):
            if room <= 0:
                break
            records = owned.take(room)
            if records:
                found[owned.topic_partition] = records
                room -= len(records)
                self._given[owned] = None
                self._owned[owned] = self._owned.pop(
                    owned
                )  # the next read begins with the other partitions
                self._on_taken(owned)
        return found

    def _raise_problems(self) -> None:
        if self._failure is not None:
            raise self._failure
        for owned in self._owned:
            if owned.problem is not None:
                raise owned.problem


class StreamSet:
    """All streams of a consumer. `of` finds the stream that reads an owned partition."""

    def __init__(self, streams: Mapping[tuple[str | None, int], Stream]) -> None:
        """The keys of `streams` are (topic, stream number). The topic is None in a subscription by
        pattern."""
        self._streams = dict(streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def of(self, owned: OwnedPartition) -> Stream | None:
        number = owned.thread.number
        return self._streams.get((owned.topic_partition.topic, number)) or self._streams.get(
            (None, number)
        )

    def attach(self, owned: OwnedPartition) -> None:
        if (stream := self.of(owned)) is not None:
            stream.attach(owned)

    def detach(self, owned: OwnedPartition) -> None:
        if (stream := self.of(owned)) is not None:
            stream.detach(owned)

    def wake(self, owned: OwnedPartition) -> None:
        if (stream := self.of(owned)) is not None:
            stream.wake()
