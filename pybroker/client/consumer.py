"""The public consumer. It reads manually assigned partitions, or those that its group assigns."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, Unpack

from pybroker.client import defaults
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.deserializers import DeserializerLike, Deserializers
from pybroker.client.errors import Closed, ConfigError, DeadlinePassed, SubscriptionConflict
from pybroker.client.fetcher import Fetcher
from pybroker.client.group_values import GroupMetadata, OffsetAndMetadata
from pybroker.client.groups.committer import CommitCallback, GivenOffsets
from pybroker.client.groups.group import Group
from pybroker.client.groups.topics import (
    Callback,
    RebalanceCallbacks,
    RebalanceListener,
    TopicChoice,
    topic_names,
)
from pybroker.client.keywords import ConsumerKeywords
from pybroker.client.metrics import ConsumerMetrics
from pybroker.client.metrics_reports import MetricsReports, OnMetrics
from pybroker.client.offset_lookup import EARLIEST, LATEST, OffsetAnswer, list_offsets
from pybroker.client.options import ConsumerOptions, parse_options
from pybroker.client.reading import Reading
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Rng
from pybroker.records.consumed import ConsumerRecord
from pybroker.records.type_variables import Key_co, Value_co

if TYPE_CHECKING:
    from pybroker.client.arrow import RecordBatch


class Consumer(Generic[Key_co, Value_co]):
    """A consumer of records, as a member of a group or with manually assigned partitions.

        async with Consumer("localhost:9092", topics=["orders"], group_id="billing") as consumer:
            async for record in consumer:
                print(record.partition, record.offset, record.value)

    The other keyword arguments are those of `ConsumerKeywords`. For a pattern or callbacks call
    `subscribe`. One task at a time may read. A consumer that does not read (`getmany`,
    `poll_arrow`, `getone`, `async for`) for max.poll.interval.ms leaves its group.

    A deserializer is a function of the bytes (None for null), or an object with a method
    `deserialize(topic, data)` or `deserialize(topic, headers, data)`. The first access to
    `record.key` or `record.value` calls the deserializer. If the deserializer fails, the access
    raises DeserializationFailed. `poll_arrow` uses no deserializers.

    With enable.auto.commit, a record counts as processed when the next record is requested. If an
    exception ends the `async with` block, the last returned records are not committed.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        topics: Iterable[str] | None = None,
        key_deserializer: DeserializerLike[Key_co] | None = None,
        value_deserializer: DeserializerLike[Value_co] | None = None,
        on_metrics: OnMetrics[ConsumerMetrics] | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        """Parse the options. `on_metrics`, a plain or an async function, gets the metrics every
        statistics.interval.ms and at the end of `close`. Raises one ConfigError for all invalid
        options. Raises ConfigError also if `topics` is empty, or is given without a group_id."""
        faults: list[str] = []
        deserializers = Deserializers.of(key_deserializer, value_deserializer, faults)
        self.options = parse_options(ConsumerOptions, options, bootstrap_servers, faults)
        self._topics = None if topics is None else _chosen_topics(topics, self.options.group_id)
        self._committed_only = self.options.isolation_level == "read_committed"
        self._clock = clock or defaults.make_clock()
        self._cluster = Cluster(
            self.options,
            clock=self._clock,
            rng=rng or defaults.make_rng(),
            auto_create_topics=self.options.allow_auto_create_topics,
        )
        counters = self._metrics = ConsumerMetrics(self.options.client_id)
        self._reports = MetricsReports(
            on_metrics, self.metrics, self.options.statistics_interval_ms
        )
        self._fetcher = Fetcher(self.options, self._cluster, counters)
        group_id = self.options.group_id
        self._group = (
            None
            if group_id is None
            else Group(self.options, self._cluster, self._fetcher, group_id, counters)
        )
        self._reading = Reading(
            self.options,
            self._clock,
            self._fetcher,
            self._group,
            None if deserializers is None else deserializers.wrap,
        )
        self._ending: asyncio.Event | None = None
        self._closer: asyncio.Task[object] | None = None

    async def start(self) -> None:
        """Connect to a bootstrap broker, and subscribe to the constructor's `topics` unless already
        subscribed. Raises NoBrokers after bootstrap.timeout.ms. Raises SubscriptionConflict if the
        constructor got `topics` and `assign` was called."""
        try:
            await self._cluster.start()
            if self._topics is not None and not self._is_subscribed:
                self.subscribe(self._topics)
        except BaseException:
            await self._cluster.close()
            raise
        self._fetcher.start()
        self._reports.start()
        self._reading.running = True

    async def close(self) -> None:
        """Commit the positions if automatic commits are enabled, then leave the group. A task that
        waits for records gets Closed. The errors of callbacks are raised after the consumer has
        closed. Idempotent."""
        await self._close({}, quick=False)

    async def _close(self, in_hand: Mapping[TopicPartition, int], *, quick: bool) -> None:
        if self._ending is not None:
            if self._closer is not asyncio.current_task():  # a callback must not wait for itself
                await self._ending.wait()
            return
        self._ending, self._closer = asyncio.Event(), asyncio.current_task()
        was_running, self._reading.running = self._reading.running, False
        self._fetcher.news.set()
        async with AsyncExitStack() as last:  # all callbacks run, even if one fails
            last.callback(self._ending.set)
            last.push_async_callback(self._cluster.close)
            last.push_async_callback(self._reports.close)
            last.push_async_callback(self._fetcher.close)
            if self._group is not None and was_running:
                await self._group.close(in_hand, quick=quick)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self._close(self._reading.in_hand, quick=True)

    # Subscription and assignment

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to these topics, or to all whose full name matches `pattern`, in place of an
        earlier subscription. The next reading call joins the group.

        Raises SubscriptionConflict after `assign`, or without group.id. Raises ValueError for both
        or neither of `topics` and `pattern`, and for a `listener` with callbacks.
        """
        callbacks = RebalanceCallbacks(on_assigned, on_revoked, on_lost)
        if listener is not None:
            if callbacks != RebalanceCallbacks():
                raise ValueError(
                    "subscribe() has both a listener and callbacks, expected one of them: pass"
                    " either listener, or on_assigned, on_revoked and on_lost"
                )
            callbacks = RebalanceCallbacks(
                listener.on_assigned, listener.on_revoked, listener.on_lost
            )
        choice = TopicChoice(
            topic_names(topics),
            re.compile(pattern) if pattern is not None else None,
            not self.options.exclude_internal_topics,
        )
        if bool(choice.topics) == (pattern is not None):
            given = "neither topics nor" if pattern is None else "both topics and"
            raise ValueError(
                f"subscribe() has {given} a pattern, expected one of them: pass topics or pattern"
            )
        group = self._need_group("subscribe")
        if group.session.choice is None and self._fetcher.readers:
            raise SubscriptionConflict(
                f"subscribe() is not possible while {len(self._fetcher.readers)} partitions are"
                " assigned by assign(): await unsubscribe() first"
            )
        group.session.subscribe(choice, callbacks)

    async def unsubscribe(self) -> None:
        """Release all partitions and leave the group. Raises the errors of rebalance callbacks."""
        if self._group is not None:
            await self._group.leave()
        self._fetcher.assign([])
        self._fetcher.news.set()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics. With a pattern, these are the topics that match it now."""
        topics = self._group.session.topics if self._group is not None else None
        return topics or frozenset()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. A partition that was already assigned keeps its position.
        A new partition starts at the group's committed offset, otherwise by auto.offset.reset.
        Raises SubscriptionConflict while subscribed."""
        chosen = [TopicPartition(*item) for item in partitions]
        if self._is_subscribed:
            raise SubscriptionConflict(
                "assign() is not possible while the consumer is subscribed to topics: await"
                " unsubscribe() first"
            )
        if self._group is not None:
            self._group.committer.commit_now()
        self._cluster.watch({item.topic for item in chosen})
        self._fetcher.assign(chosen)
        self._fetcher.news.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._fetcher.readers)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position of a partition. Raises NotAssigned, or ValueError for a negative
        offset."""
        if offset < 0:
            raise ValueError(
                f"the offset to seek to in {partition} is {offset}, expected 0 or more"
            )
        self._fetcher.jump([partition], offset, None)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Seek to the log start of these partitions (none given: all assigned ones). Raises
        NotAssigned."""
        self._fetcher.jump(partitions or [*self._fetcher.readers], None, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Seek to the log end of these partitions (none given: all assigned ones). Raises
        NotAssigned."""
        self._fetcher.jump(partitions or [*self._fetcher.readers], None, LATEST)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Seek these partitions (none given: all assigned) to the first record at or after this
        time (ms since 1970), otherwise to the log end. Raises NotAssigned, and the errors of
        `offsets_for_times`."""
        chosen = [TopicPartition(*item) for item in partitions] or [*self._fetcher.readers]
        self._fetcher.chosen(chosen)
        found = await self.offsets_for_times(dict.fromkeys(chosen, timestamp_ms))
        for item, answer in found.items():
            if answer is None:
                self._fetcher.jump([item], None, LATEST)
            else:
                self._fetcher.jump([item], answer.offset, None)

    def pause(self, *partitions: TopicPartition) -> None:
        """Make `getmany` and `getone` omit records of these partitions until `resume` is called, or
        until a rebalance revokes the partitions. Raises NotAssigned."""
        for reader in self._fetcher.chosen(partitions):
            reader.paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """End the effect of `pause` on these partitions. Raises NotAssigned."""
        for reader in self._fetcher.chosen(partitions):
            reader.paused = False
        self._fetcher.wake()
        self._fetcher.news.set()

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(key for key, reader in self._fetcher.readers.items() if reader.paused)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the partition's next record. Raises NotAssigned if the partition is
        not assigned. Raises DeadlinePassed after default.api.timeout.ms. Also raises the errors of
        `getmany`."""
        reader = self._fetcher.reader(partition)
        deadline = Deadline(self._clock, self.options.default_api_timeout_ms)
        while reader.position is None:
            self._reading.raise_problems([reader])
            if deadline.passed:
                raise DeadlinePassed(self._fetcher.no_position(reader.topic_partition))
            await self._reading.wait_for_news(deadline)
        return reader.position

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the partition's high watermark in the last Fetch response; None before the first
        response. Raises NotAssigned."""
        known = self._fetcher.reader(partition).high_watermark
        return None if known < 0 else known

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the number of offsets from the position to the high watermark (read_committed:
        last stable offset) of the last Fetch response; None if unknown. Raises NotAssigned."""
        return self._fetcher.reader(partition).lag(committed_only=self._committed_only)

    def metrics(self) -> ConsumerMetrics:
        """Return the present metrics of the consumer, for example for `prometheus_text`. Call this
        only in the consumer's thread."""
        found = self._metrics.copy()
        readers = self._fetcher.readers
        for key, reader in readers.items():
            found.topics[key.topic].records += reader.ready_at
            lag = reader.lag(committed_only=self._committed_only)
            if lag is not None:
                found.lag[key] = lag
        found.assigned_partitions = len(readers)
        return found

    # Committing

    async def commit(
        self, offsets: GivenOffsets | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commit `offsets` (None: all positions), once all earlier commits have ended. Each offset
        is that of the next record to read. `timeout_ms` None: default.api.timeout.ms.

        Raises:

        - CommitFailed if other members may own the partitions.
        - RebalanceInProgress during a rebalance.
        - FencedInstance if another member has replaced this consumer.
        - DeadlinePassed; ResponseError for other errors of the coordinator.
        - ValueError for a negative offset.
        """
        group = self._need_group("commit")
        limit_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await group.committer.commit(offsets, Deadline(self._clock, limit_ms))

    def commit_async(
        self, offsets: GivenOffsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting and without retries. The callback, a plain or an async function,
        gets the offsets, and the error or None."""
        self._need_group("commit").committer.commit_async(offsets, callback)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return for each partition the group's committed offset; None if there is none. With
        read_committed, wait for open transactions that may commit offsets. Raises DeadlinePassed,
        ResponseError."""
        group = self._need_group("committed")
        return await group.committed([TopicPartition(*item) for item in partitions])

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of this member for `Producer.send_offsets`. Raises CommitFailed if
        this member's partitions may now belong to other members."""
        return self._need_group("group_metadata").metadata()

    # Reading

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Key_co, Value_co]]]:
        """Return the next records of the given partitions, or of all assigned partitions if none is
        given. The result has at most `max_records` records in total (None: max.poll.records). If no
        record arrives within `timeout_ms`, return {}.

        Raises OffsetUnavailable, DamagedRecords or ResponseError if a partition cannot be read:
        pause the partition or seek. Raises SubscriptionConflict if there is no subscription or
        assignment. Raises NotAssigned if a given partition is not assigned or is revoked.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        return await self._reading.records(timeout_ms, limit, partitions)

    async def poll_arrow(
        self, timeout_ms: int = 0, max_bytes: int | None = None, *, headers: bool = False
    ) -> dict[TopicPartition, RecordBatch]:
        """Return the next records as Arrow record batches with the columns of `arrow_schema`. The
        result has whole producer batches and may exceed `max_bytes` (None: fetch.max.bytes). Raises
        the errors of `getmany`, and ImportError if pyarrow is missing."""
        limit = self.options.fetch_max_bytes if max_bytes is None else max_bytes
        return await self._reading.columns(timeout_ms, limit, headers=headers)

    async def getone(self) -> ConsumerRecord[Key_co, Value_co]:
        """Wait for the next record, without a time limit. Raises the errors of `getmany`."""
        return await self._reading.record()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[Key_co, Value_co]]:
        return self

    async def __anext__(self) -> ConsumerRecord[Key_co, Value_co]:
        try:
            return await self._reading.record()
        except Closed:
            raise StopAsyncIteration from None

    # Looking up

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition. Raises the first error of a partition."""
        return await self._offsets(dict.fromkeys(partitions, EARLIEST))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark (read_committed: last stable offset) of each partition. Raises
        the errors of `beginning_offsets`."""
        return await self._offsets(dict.fromkeys(partitions, LATEST))

    async def offsets_for_times(
        self, moments: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAnswer | None]:
        """Return for each partition the first record at or after the given time (ms since 1970);
        None if there is none. Raises the errors of `beginning_offsets`."""
        answers = await self._look_up(moments)
        return {key: answer if answer.offset >= 0 else None for key, answer in answers.items()}

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions. Raises TopicUnavailable after default.api.timeout.ms."""
        self._reading.check_running()
        deadline = Deadline(self._clock, self.options.default_api_timeout_ms)
        info = await self._cluster.topic(topic, deadline)
        return [TopicPartition(topic, number) for number in sorted(info.partitions)]

    # Internal

    @property
    def _is_subscribed(self) -> bool:
        return self._group is not None and self._group.session.choice is not None

    async def _offsets(self, moments: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {key: answer.offset for key, answer in (await self._look_up(moments)).items()}

    async def _look_up(
        self, moments: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAnswer]:
        self._reading.check_running()
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

    def _need_group(self, operation: str) -> Group:
        if self._group is None:
            raise SubscriptionConflict(f"{operation} needs a group: set the option group.id")
        return self._group


def _chosen_topics(topics: Iterable[str], group_id: str | None) -> frozenset[str]:
    try:
        names = topic_names(topics)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if not names:
        raise ConfigError(["topics must name at least one topic"])
    if group_id is None:
        raise ConfigError(
            ["if topics are given, the consumer needs a group_id; without a group, call assign()"]
        )
    return names
