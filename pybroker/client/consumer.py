"""The public consumer: reads the partitions that it is given, from wherever it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Self

from pybroker.client import defaults
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.errors import Closed, DeadlinePassed
from pybroker.client.fetcher import Fetcher
from pybroker.client.offset_lookup import EARLIEST, LATEST, OffsetAnswer, list_offsets
from pybroker.client.options import ConsumerOptions, parse_options
from pybroker.client.subscription import ConsumerRecord, PartitionReader
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Rng

WAIT_MS = 60_000


class Consumer:
    """Reads records of assigned partitions.

        async with Consumer("localhost:9092", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            async for record in consumer:
                print(record.offset, record.value)

    Options are those of `ConsumerOptions`, with dots or underscores. One task at a time may read.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: object,
    ) -> None:
        """Raises ConfigError."""
        if bootstrap_servers is not None:
            options["bootstrap_servers"] = (
                bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
            )
        self.options = parse_options(ConsumerOptions, options)
        self._clock = clock or defaults.make_clock()
        self._cluster = Cluster(
            self.options,
            clock=self._clock,
            rng=rng or defaults.make_rng(),
            auto_create_topics=self.options.allow_auto_create_topics,
        )
        self._fetcher = Fetcher(self.options, self._cluster)
        self._running = False

    async def start(self) -> None:
        """Reach the cluster. Raises NoBrokers."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._fetcher.start()
        self._running = True

    async def close(self) -> None:
        """Idempotent. A task that waits for records gets Closed."""
        self._running = False
        self._fetcher.news.set()
        await self._fetcher.close()
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # What to read

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these. Partitions read before go on where they were; new ones begin as
        auto.offset.reset says, unless `seek` follows."""
        chosen = [TopicPartition(*item) for item in partitions]
        self._cluster.watch({item.topic for item in chosen})
        self._fetcher.assign(chosen)

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._fetcher.readers)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record read is the one at `offset`, or the first after it. Raises KeyError if
        the partition is not assigned, ValueError for a negative offset."""
        if offset < 0:
            raise ValueError(f"offset is {offset}, expected 0 or more")
        self._jump([partition], offset, None)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Of these, or of all that are assigned."""
        self._jump(partitions or [*self._fetcher.readers], None, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Of these, or of all that are assigned; only records appended later are read."""
        self._jump(partitions or [*self._fetcher.readers], None, LATEST)

    def pause(self, *partitions: TopicPartition) -> None:
        """Give no records of these until `resume`."""
        for partition in partitions:
            self._reader(partition).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self._reader(partition).paused = False
        self._fetcher.wake()
        self._fetcher.news.set()

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(key for key, reader in self._fetcher.readers.items() if reader.paused)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that will be given. Raises DeadlinePassed if it does not
        become known, and what `getmany` raises."""
        reader = self._reader(partition)
        deadline = Deadline(self._clock, self.options.default_api_timeout_ms)
        while reader.position is None:
            self._raise_problems([reader])
            if deadline.passed:
                raise DeadlinePassed(f"the position of {partition} did not become known")
            await self._wait_for_news(deadline)
        return reader.position

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The end of what is committed, as the last answer said; None before the first."""
        known = self._reader(partition).high_watermark
        return None if known < 0 else known

    # Reading

    async def getmany(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records by partition, at most `max_records` (None: max.poll.records) together; empty if
        none came within `timeout_ms`.

        Raises OffsetUnavailable (auto.offset.reset=none), DamagedRecords, ResponseError for what
        retrying does not cure; the other partitions can be read on after `pause` or `seek`.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        deadline = Deadline(self._clock, timeout_ms)
        while True:
            self._check_running()
            self._fetcher.news.clear()
            records = self._collect(limit)
            if records:
                return records
            self._raise_problems(self._fetcher.readers.values())
            if deadline.passed:
                return {}
            await self._wait_for_news(deadline)

    async def getone(self) -> ConsumerRecord:
        """The next record, however long it takes. Raises as `getmany`."""
        while True:
            for reader in self._fetcher.readers.values():
                if reader.ready and not reader.paused:
                    self._check_running()
                    return reader.pop()
            for records in (await self.getmany(WAIT_MS, 1)).values():
                return records[0]

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        try:
            return await self.getone()
        except Closed:
            raise StopAsyncIteration from None

    # Looking up

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset of each. Raises the error of the first that cannot be asked."""
        return await self._offsets(dict.fromkeys(partitions, EARLIEST))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record will get, as far as the isolation level sees. Raises as
        `beginning_offsets`."""
        return await self._offsets(dict.fromkeys(partitions, LATEST))

    async def offsets_for_times(
        self, moments: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAnswer | None]:
        """For each partition the first record with a timestamp of at least that many ms since
        1970, or None. Raises as `beginning_offsets`."""
        answers = await self._look_up(moments)
        return {key: answer if answer.offset >= 0 else None for key, answer in answers.items()}

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic. Raises TopicUnavailable."""
        self._check_running()
        deadline = Deadline(self._clock, self.options.default_api_timeout_ms)
        info = await self._cluster.topic(topic, deadline)
        return [TopicPartition(topic, number) for number in sorted(info.partitions)]

    # Inside

    async def _offsets(self, moments: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {key: answer.offset for key, answer in (await self._look_up(moments)).items()}

    async def _look_up(
        self, moments: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAnswer]:
        self._check_running()
        answers = await list_offsets(
            self._cluster,
            moments,
            isolation_level=self.options.isolation_level,
            deadline=Deadline(self._clock, self.options.default_api_timeout_ms),
        )
        for answer in answers.values():
            if answer.error is not None:
                raise answer.error
        return answers

    def _reader(self, partition: TopicPartition) -> PartitionReader:
        reader = self._fetcher.readers.get(TopicPartition(*partition))
        if reader is None:
            raise KeyError(f"{partition} is not assigned")
        return reader

    def _jump(
        self, partitions: Iterable[TopicPartition], offset: int | None, reset: int | None
    ) -> None:
        for partition in partitions:
            self._reader(partition).jump(offset, reset)
        self._fetcher.wake()

    def _collect(self, limit: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        room = limit
        for key, reader in self._fetcher.readers.items():
            if room <= 0:
                break
            if reader.paused or not reader.has_data():
                continue
            records = reader.take(
                room,
                check_crcs=self.options.check_crcs,
                committed_only=self.options.isolation_level == "read_committed",
            )
            if records:
                found[key] = records
                room -= len(records)
        self._fetcher.wake()
        return found

    def _raise_problems(self, readers: Iterable[PartitionReader]) -> None:
        if self._fetcher.broken is not None:
            raise Closed("the consumer cannot go on") from self._fetcher.broken
        for reader in readers:
            if reader.problem is not None and not reader.paused:
                raise reader.problem

    async def _wait_for_news(self, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._fetcher.news.wait()
        except TimeoutError:
            pass
        self._fetcher.news.clear()

    def _check_running(self) -> None:
        if not self._running:
            raise Closed("the consumer is not running")
