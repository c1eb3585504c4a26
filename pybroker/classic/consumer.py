"""`ClassicConsumer`, the public class: it creates, starts and closes the consumer's parts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from pybroker.background import TaskOwner
from pybroker.classic.commits import Offsets, OffsetStore
from pybroker.classic.errors import NotOwned, RebalanceFailed
from pybroker.classic.kafka_offsets import KafkaOffsets
from pybroker.classic.nodes import GroupNodes
from pybroker.classic.options import parse_classic_options
from pybroker.classic.partition_owners import OwnedPartition
from pybroker.classic.reading import Reader
from pybroker.classic.rebalancing import RebalanceListener, Rebalancer
from pybroker.classic.session_validity import SessionValidity
from pybroker.classic.stream import Stream, StreamSet
from pybroker.classic.subscription import (
    BLACK_LIST,
    WHITE_LIST,
    Subscription,
    by_names,
    by_pattern,
)
from pybroker.client import defaults
from pybroker.client.errors import ClientError, Closed, ConfigError
from pybroker.coordinator.zookeeper.schemas import encode_consumer
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.errors import CoordError, PybrokerError
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Coord, Rng

log = logging.getLogger(__name__)

_LEAVE_S: Final = 5.0


class ClassicConsumer:
    """A consumer whose group coordinates itself through ZooKeeper. Consumers of Kafka 0.8 may be
    members of the same group.

        async with ClassicConsumer("localhost:2181", group_id="billing") as consumer:
            streams = await consumer.subscribe({"orders": 1})
            async for record in streams["orders"][0]:
                print(record.offset, record.value)

    Options are those of `ClassicOptions`, with dots or underscores. Several tasks may read, but not
    from the same stream.
    """

    def __init__(
        self,
        zookeeper_connect: str | None = None,
        *,
        coord: Coord | None = None,
        listener: RebalanceListener | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: object,
    ) -> None:
        """`coord` is a started ZooKeeper session, which the caller closes; with None the consumer
        opens one. `listener` is called for lost and gained partitions. Raises ConfigError."""
        if zookeeper_connect is not None:
            options["zookeeper_connect"] = zookeeper_connect
        self.options = parse_classic_options(options)
        self._given_coord = coord
        self._own_coord: KazooCoord | None = None
        self._listener = listener
        self._clock = clock or defaults.make_clock()
        self._rng = rng or defaults.make_rng()
        self.consumer_id = self._make_id()
        """The id of this member in the group's nodes in ZooKeeper."""
        self._tasks = TaskOwner(self._task_failed)
        self._streams = StreamSet({})
        self._validity: SessionValidity | None = None
        self._reader: Reader | None = None
        self._offsets: OffsetStore | None = None
        self._rebalancer: Rebalancer | None = None
        self._commit_now = asyncio.Event()
        self._broken: PybrokerError | None = None
        self._outcome: PybrokerError | None = None
        self._closed = False

    # ---- life

    async def start(self) -> None:
        """Connect to ZooKeeper. Raises StartupError."""
        options = self.options
        if self._given_coord is None:
            self._own_coord = KazooCoord(
                options.zookeeper_connect,
                clock=self._clock,
                session_timeout_ms=options.zookeeper_session_timeout_ms,
            )
            timeout_ms = options.zookeeper_connection_timeout_ms
            if timeout_ms is None:
                timeout_ms = options.zookeeper_session_timeout_ms
            await self._own_coord.start(timeout_ms / 1000)
        session_timeout_ms = options.zookeeper_session_timeout_ms
        if self._own_coord is not None:
            session_timeout_ms = self._own_coord.session_timeout_ms
        coord = self._given_coord or self._own_coord
        assert coord is not None
        self._validity = SessionValidity(
            coord,
            session_timeout_ms=session_timeout_ms,
            on_expired=self._session_expired,
            on_connected=self._session_connected,
            on_certain=self._wake_streams,
        )

    async def close(self) -> None:
        """Leave the group. With auto.commit.enable, first commit the offsets of the consumed
        records (see `Stream`). Idempotent."""
        if self._closed:
            return
        self._closed = True
        for stream in self._streams:
            stream.close()
        async with AsyncExitStack() as last:  # runs every step, even if an earlier step fails
            for each in (self._own_coord, self._reader, self._validity):
                if each is not None:
                    last.push_async_callback(each.close)
            await self._tasks.close()
            if self._rebalancer is not None:
                await self._leave(self._rebalancer)

    async def _leave(self, rebalancer: Rebalancer) -> None:
        try:
            async with asyncio.timeout(_LEAVE_S):
                await rebalancer.leave()
        except (CoordError, ClientError, TimeoutError) as error:
            log.warning(
                "leaving failed consumer=%s reason=%r; its partitions are released when its"
                " session has expired", self.consumer_id, error,
            )  # fmt: skip

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

    # ---- subscription: one of these methods may be called, once

    async def subscribe(self, topics: Mapping[str, int] | Iterable[str]) -> dict[str, list[Stream]]:
        """Join the group for these topics, each with a number of streams (default: one). The topics
        need not exist yet. Raises ConfigError, GroupIsCoordinated, RebalanceFailed."""
        if isinstance(topics, str):
            topics = [topics]
        counts = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
        subscription = by_names(counts)
        streams = {
            (topic, number): self._make_stream(f"{topic}-{number}")
            for topic, count in counts.items()
            for number in range(count)
        }
        await self._join(subscription, StreamSet({**streams}))
        return {
            topic: [streams[topic, number] for number in range(count)]
            for topic, count in counts.items()
        }

    async def subscribe_pattern(
        self, *, white_list: str | None = None, black_list: str | None = None, streams: int = 1
    ) -> list[Stream]:
        """Join the group for all present and future topics whose whole name matches `white_list`,
        or for all that do not match `black_list`. Give only one of the two. A comma in the regular
        expression means `|`. Raises the errors of `subscribe`."""
        if white_list is not None and black_list is None:
            subscription = by_pattern(WHITE_LIST, white_list, streams)
        elif black_list is not None and white_list is None:
            subscription = by_pattern(BLACK_LIST, black_list, streams)
        else:
            raise ConfigError(["subscribe_pattern needs exactly one of white_list and black_list"])
        made = [self._make_stream(f"pattern-{number}") for number in range(streams)]
        await self._join(
            subscription, StreamSet({(None, number): each for number, each in enumerate(made)})
        )
        return made

    # ---- owned partitions and their offsets

    def owned(self) -> dict[TopicPartition, str]:
        """Return partition -> thread id, for the partitions that this member owns now. The thread
        id is the one in the partition's owner node."""
        held = {} if self._rebalancer is None else self._rebalancer.held
        return {key: str(held[key].thread) for key in sorted(held)}

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit `offsets`: for each partition the next offset to read. Without `offsets`, commit
        the offsets that follow the last returned records.

        Raises:

        - NotOwned if this member does not own some partitions. The other offsets are committed.
        - CoordError or ClientError if ZooKeeper or the group coordinator did not confirm the
          commit.
        - ValueError for a negative offset.
        """
        rebalancer, store = self._rebalancer, self._offsets
        if rebalancer is None or store is None or self._closed:
            raise Closed("the consumer is not in a group; call subscribe first")
        for key, offset in (offsets or {}).items():
            if offset < 0:
                raise ValueError(f"the offset to commit for {key} is {offset}, expected 0 or more")
        owned_partitions = {owned.topic_partition: owned for owned in rebalancer.owned_partitions()}
        missing: list[TopicPartition] = []
        if offsets is None:
            for stream in self._streams:
                stream.settle_all()
        else:
            missing = [key for key in offsets if key not in owned_partitions]
            owned_partitions = {
                key: owned_partitions[key] for key in offsets if key in owned_partitions
            }
            for key, owned in owned_partitions.items():
                owned.done_until(offsets[key])
        lost = await store.write(owned_partitions.values(), offsets)
        if lost:
            rebalancer.lost(lost)
        if lost or missing:
            raise NotOwned([*missing, *(owned.topic_partition for owned in lost)])

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the offset at which a new owner of the partition would start; None if no offset is
        committed. Before `subscribe`, this is always the offset in ZooKeeper. Raises CoordError or
        MalformedNode. With offsets.storage=kafka, it may also raise ClientError."""
        key = TopicPartition(*partition)
        store = self._offsets or Offsets(
            self._coord(), self.options.group_id, sessions_ended=lambda: 0
        )
        return (await store.read([key]))[key].start

    # ---- inside: joining

    async def _join(self, subscription: Subscription, streams: StreamSet) -> None:
        if self._rebalancer is not None:
            raise ClientError(
                "the consumer has already subscribed, and may subscribe only once: create another"
                " consumer"
            )
        if self._closed:
            raise Closed("the consumer is closed")
        options = self.options
        coord, validity = self._coord(), self._validity
        assert validity is not None
        self._streams = streams
        self._reader = Reader(
            options,
            clock=self._clock,
            rng=self._rng,
            deliver=streams.wake,
            on_start_found=self._commit_now.set,
            on_failure=self._break,
        )
        self._offsets = self._make_store(coord, validity, self._reader)
        self._rebalancer = Rebalancer(
            options=options,
            consumer_id=self.consumer_id,
            coord=coord,
            clock=self._clock,
            nodes=GroupNodes(
                coord, options.group_id, exclude_internal=options.exclude_internal_topics
            ),
            offsets=self._offsets,
            validity=validity,
            reader=self._reader,
            streams=streams,
            listener=self._listener,
            registration=lambda: encode_consumer(subscription.registration(self._clock.wall_ms())),
            on_outcome=self._rebalanced,
        )
        try:
            await self._rebalancer.rebalance()
        except RebalanceFailed:
            await self._rebalancer.withdraw()
            raise
        self._tasks.start(self._rebalancer.run(), "classic consumer rebalancer")
        if options.auto_commit_enable:
            self._tasks.start(self._commit_by_itself(), "classic consumer auto-commit")

    def _make_store(self, coord: Coord, validity: SessionValidity, reader: Reader) -> OffsetStore:
        options = self.options
        nodes = Offsets(coord, options.group_id, sessions_ended=lambda: validity.sessions_ended)
        if options.offsets_storage == "zookeeper":
            return nodes
        return KafkaOffsets(
            nodes,
            consumer=reader.consumer,
            dual=options.dual_commit_enabled is not False,
            timeout_ms=options.offsets_channel_socket_timeout_ms,
        )

    def _make_stream(self, name: str) -> Stream:
        if self._validity is None:
            raise Closed("the consumer was not started: call start, or use async with")
        return Stream(
            name,
            clock=self._clock,
            certainty=self._validity,
            on_taken=self._taken,
            timeout_ms=self.options.consumer_timeout_ms,
        )

    def _make_id(self) -> str:
        name = self.options.consumer_id
        if not name:
            random = self._rng.randbytes(4).hex()
            name = f"{socket.gethostname()}-{self._clock.wall_ms()}-{random}"
        return f"{self.options.group_id}_{name}"

    def _coord(self) -> Coord:
        coord = self._given_coord or self._own_coord
        if coord is None or self._validity is None:
            raise Closed("the consumer was not started: call start, or use async with")
        return coord

    # ---- inside: committing

    async def _commit_by_itself(self) -> None:
        rebalancer, store = self._rebalancer, self._offsets
        assert rebalancer is not None
        assert store is not None
        failing = False
        while True:
            try:
                async with asyncio.timeout(self.options.auto_commit_interval_ms / 1000):
                    await self._commit_now.wait()
            except TimeoutError:
                pass
            self._commit_now.clear()
            try:
                lost = await store.write(rebalancer.owned_partitions())
            except (CoordError, ClientError) as error:
                if not failing:
                    log.warning(
                        "auto commit failed consumer=%s reason=%r; the consumer tries again",
                        self.consumer_id, error,
                    )  # fmt: skip
                failing = True
                continue
            failing = False
            if lost:
                rebalancer.lost(lost)

    # ---- inside: called by the parts

    def _taken(self, owned: OwnedPartition) -> None:
        if self._reader is not None:
            self._reader.room_again(owned)

    def _session_expired(self) -> None:
        log.warning("ZooKeeper session expired consumer=%s", self.consumer_id)
        if self._rebalancer is not None:
            self._rebalancer.forget()

    def _session_connected(self) -> None:
        if self._rebalancer is not None:
            self._rebalancer.wake()

    def _wake_streams(self) -> None:
        for stream in self._streams:
            stream.wake()

    def _rebalanced(self, outcome: PybrokerError | None) -> None:
        self._outcome = outcome
        self._report_to_streams()

    def _break(self, error: PybrokerError) -> None:
        self._broken = error
        self._report_to_streams()

    def _task_failed(self, error: BaseException) -> None:
        self._break(Closed(f"the consumer has failed: {error!r}"))

    def _report_to_streams(self) -> None:
        for stream in self._streams:
            stream.fail(self._broken or self._outcome)
