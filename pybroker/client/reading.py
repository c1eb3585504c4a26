"""The consumer's calls that read records. Decoding lets other tasks run every few milliseconds."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pybroker.client.arrow import arrow_schema, record_batch
from pybroker.client.backoff import Deadline, wait_for_event
from pybroker.client.errors import Closed, SubscriptionConflict
from pybroker.client.fetcher import Fetcher
from pybroker.client.groups.group import Group
from pybroker.client.options import ConsumerOptions
from pybroker.client.subscription import PartitionReader, Rules, Turn, Wrap
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.records.consumed import ConsumerRecord

if TYPE_CHECKING:
    from pybroker.client.arrow import RecordBatch

T = TypeVar("T")
Records = dict[TopicPartition, list[ConsumerRecord[Any, Any]]]

WAIT_MS: Final = 60_000


class Reading:
    """The consumer's calls that read records, and the records that the last call returned."""

    def __init__(
        self,
        options: ConsumerOptions,
        clock: Clock,
        fetcher: Fetcher,
        group: Group | None,
        wrap: Wrap | None,
    ) -> None:
        self._options = options
        self._rules = Rules(options.check_crcs, options.isolation_level == "read_committed", wrap)
        self._clock = clock
        self._fetcher = fetcher
        self._group = group
        self.running = False
        self.in_hand: dict[TopicPartition, int] = {}
        """The offset of the first record that the last call returned, by partition."""
        self._last: PartitionReader | None = None
        self._last_of: object = None
        """`_last` is the reader that returned the last single record, and `_last_of` the assigned
        readers at that time. While the assignment is the same, the next single record comes from
        the same reader."""

    async def records(
        self, timeout_ms: int, limit: int, partitions: tuple[TopicPartition, ...]
    ) -> Records:
        """Return the next records, at most `limit` in total; see `Consumer.getmany`."""
        return await self._poll(
            timeout_ms,
            partitions,
            functools.partial(self._decode, limit),
            functools.partial(self._collect, limit),
        )

    async def columns(
        self, timeout_ms: int, bytes_max: int, *, headers: bool
    ) -> dict[TopicPartition, RecordBatch]:
        """Return the next records as columns; see `Consumer.poll_arrow`."""
        arrow_schema()
        return await self._poll(
            timeout_ms,
            (),
            functools.partial(self._decode_columns, bytes_max, headers),
            self._collect_columns,
        )

    async def record(self) -> ConsumerRecord[Any, Any]:
        """Wait for the next record; see `Consumer.getone`."""
        while True:
            if self._group is None or not self._group.due():
                found = self._ready_record()
                if found is not None:
                    return found
            for records in (await self.records(WAIT_MS, 1, ())).values():
                return records[0]

    def _ready_record(self) -> ConsumerRecord[Any, Any] | None:
        """Return the next record if it is decoded already."""
        reader = self._last
        if (
            reader is None
            or not reader.ready
            or reader.paused
            or self._last_of is not self._fetcher.readers
        ):
            reader = next((one for one in self._readers() if one.ready and not one.paused), None)
            if reader is None:
                return None
            self._last, self._last_of = reader, self._fetcher.readers
        self.check_running()
        record = reader.pop()
        self.in_hand = {reader.topic_partition: record.offset}
        return record

    def check_running(self) -> None:
        if not self.running:
            raise Closed("the consumer is not running: use it in an async with block")

    def raise_problems(self, readers: Iterable[PartitionReader]) -> None:
        if (broken := self._fetcher.broken) is not None:
            raise Closed(f"the consumer has failed: {broken}") from broken
        for reader in readers:
            if reader.problem is not None and not reader.paused:
                raise reader.problem

    async def wait_for_news(self, deadline: Deadline) -> None:
        """Wait until `Fetcher.news` is set, the group has work that is due, or the deadline passes.
        Then clear `Fetcher.news`."""
        limit_s = deadline.remaining_s()
        if self._group is not None:
            limit_s = self._group.wait_at_most_s(limit_s)
        await wait_for_event(self._fetcher.news, limit_s)
        self._fetcher.news.clear()

    async def _poll(
        self,
        timeout_ms: int,
        partitions: tuple[TopicPartition, ...],
        decode: Callable[[Iterable[PartitionReader], Turn], bool],
        collect: Callable[[Iterable[PartitionReader]], dict[TopicPartition, T]],
    ) -> dict[TopicPartition, T]:
        """Decode and collect until `collect` finds records. Return {} after `timeout_ms`. If
        `decode` returns False, other tasks run before `decode` is called again."""
        self.check_running()
        if not self._has_choice():
            raise SubscriptionConflict(
                "the consumer has neither subscribed topics nor assigned partitions: call"
                " subscribe() or assign() before you read"
            )
        deadline = Deadline(self._clock, timeout_ms)
        self.in_hand = {}
        with self._no_poll_limit():
            while True:
                self.check_running()
                self._fetcher.news.clear()
                if self._group is not None:
                    await self._group.attend()
                    self.check_running()
                while not decode(self._with_data(partitions), Turn()):
                    await asyncio.sleep(0)
                    self.check_running()
                found = collect(self._with_data(partitions))
                self._fetcher.wake()
                if found:
                    return found
                if not self._has_choice():
                    return {}
                self.raise_problems(self._readers(partitions))
                if deadline.passed:
                    return {}
                await self.wait_for_news(deadline)

    def _decode(self, limit: int, readers: Iterable[PartitionReader], turn: Turn) -> bool:
        for reader in readers:
            if limit <= 0:
                break
            if not reader.decode(limit, turn, self._rules):
                return False
            limit -= reader.ready_count
        return True

    def _collect(self, limit: int, readers: Iterable[PartitionReader]) -> Records:
        found: Records = {}
        for reader in readers:
            if limit <= 0:
                break
            records = reader.take(limit)
            if records:
                found[reader.topic_partition] = records
                self.in_hand[reader.topic_partition] = records[0].offset
                limit -= len(records)
        return found

    def _decode_columns(
        self, bytes_max: int, headers: bool, readers: Iterable[PartitionReader], turn: Turn
    ) -> bool:
        for reader in readers:
            if bytes_max <= 0:
                break
            if not reader.decode_columns(bytes_max, turn, self._rules, headers=headers):
                return False
            bytes_max -= reader.columns_bytes
        return True

    def _collect_columns(
        self, readers: Iterable[PartitionReader]
    ) -> dict[TopicPartition, RecordBatch]:
        found: dict[TopicPartition, RecordBatch] = {}
        for reader in readers:
            position = reader.position or 0
            columns = reader.take_columns()
            if columns is not None:
                found[reader.topic_partition] = record_batch(*reader.topic_partition, columns)
                self.in_hand[reader.topic_partition] = position
        return found

    def _readers(self, partitions: tuple[TopicPartition, ...] = ()) -> Iterable[PartitionReader]:
        """Return the readers of these partitions (none given: all). Raises NotAssigned."""
        return self._fetcher.chosen(partitions) if partitions else self._fetcher.readers.values()

    def _with_data(self, partitions: tuple[TopicPartition, ...]) -> list[PartitionReader]:
        return [
            reader
            for reader in self._readers(partitions)
            if reader.has_data() and not reader.paused
        ]

    def _has_choice(self) -> bool:
        is_subscribed = self._group is not None and self._group.session.choice is not None
        return is_subscribed or bool(self._fetcher.readers)

    @contextmanager
    def _no_poll_limit(self) -> Iterator[None]:
        """Return a context manager. While it is open, max.poll.interval.ms does not run out."""
        if self._group is None:
            yield
            return
        with self._group.reading():
            yield
