"""Fetches the owned partitions, and queues their records for the streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pybroker.background import TaskOwner
from pybroker.classic.options import ClassicOptions
from pybroker.classic.partition_owners import OwnedPartition
from pybroker.client.consumer import Consumer
from pybroker.client.errors import (
    ClientError,
    Closed,
    DamagedRecords,
    DeadlinePassed,
    NoBrokers,
    OffsetUnavailable,
)
from pybroker.errors import PybrokerError
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Rng

log = logging.getLogger(__name__)

_WAIT_MS = 60_000


class Reader:
    """Reads the owned partitions between `start` and `close`.

    `deliver` receives each partition that has new records. `on_start_found` is called when
    auto.offset.reset has set a start position. `on_failure` receives an error that ends all
    reading.
    """

    def __init__(
        self,
        options: ClassicOptions,
        *,
        clock: Clock,
        rng: Rng,
        deliver: Callable[[OwnedPartition], None],
        on_start_found: Callable[[], None],
        on_failure: Callable[[PybrokerError], None],
    ) -> None:
        self._options = options
        self._clock = clock
        self._rng = rng
        self._deliver = deliver
        self._on_start_found = on_start_found
        self._on_failure = on_failure
        self._consumer: Consumer | None = None
        self._owned: Mapping[TopicPartition, OwnedPartition] = {}
        self._has_claims = asyncio.Event()
        self._tasks = TaskOwner(
            lambda error: on_failure(Closed(f"the task that reads records has failed: {error!r}"))
        )

    def consumer(self) -> Consumer:
        """The `Consumer` that fetches the records. Raises Closed before `start` and after
        `close`."""
        if self._consumer is None:
            raise Closed(
                "the classic consumer does not read: it has no partitions yet, or is closed"
            )
        return self._consumer

    @property
    def is_started(self) -> bool:
        return self._consumer is not None

    async def start(self, addresses: Sequence[str]) -> None:
        """Connect to the brokers. Raises NoBrokers."""
        if not addresses:
            raise NoBrokers([])
        options = self._options
        consumer = Consumer(
            addresses,
            clock=self._clock,
            rng=self._rng,
            client_id=options.client_id or options.group_id,
            auto_offset_reset="none",
            max_partition_fetch_bytes=options.fetch_message_max_bytes,
            fetch_min_bytes=options.fetch_min_bytes,
            fetch_max_wait_ms=options.fetch_wait_max_ms,
            request_timeout_ms=options.socket_timeout_ms,
            enable_auto_commit=False,
            group_id=options.group_id if options.offsets_storage == "kafka" else None,
        )
        await consumer.start()
        self._consumer = consumer
        self._tasks.start(self._pump(consumer), "classic consumer pump")

    async def close(self) -> None:
        """End the task that reads records, and close the `Consumer`. Idempotent."""
        try:
            await self._tasks.close()
        finally:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                await consumer.close()

    def read(
        self,
        owned_partitions: Mapping[TopicPartition, OwnedPartition],
        new: Iterable[OwnedPartition],
    ) -> None:
        """Read exactly `owned_partitions` from now on: those in `new` from the group's offset, all
        others from their present position."""
        self._owned = dict(owned_partitions)
        if owned_partitions:
            self._has_claims.set()
        else:
            self._has_claims.clear()
        if self._consumer is None:
            return
        self._consumer.assign(self._owned)
        for owned in new:
            if owned.consumed is None:
                self._search(self._consumer, owned)
            else:
                self._consumer.seek(owned.topic_partition, owned.consumed)

    def room_again(self, owned: OwnedPartition) -> None:
        """Resume a paused partition if its queue has room and the partition has no `problem`."""
        if (
            self._consumer is not None
            and self._is_current(owned)
            and owned.problem is None
            and len(owned.chunks) < self._options.queued_max_message_chunks
        ):
            self._consumer.resume(owned.topic_partition)

    # Inside

    def _is_current(self, owned: OwnedPartition) -> bool:
        return self._owned.get(owned.topic_partition) is owned

    async def _pump(self, consumer: Consumer) -> None:
        while True:
            await self._has_claims.wait()
            try:
                found = await consumer.getmany(timeout_ms=_WAIT_MS)
            except OffsetUnavailable as error:
                self._search_all(consumer, error.partitions)
            except DamagedRecords as error:
                owned = self._owned.get(error.topic_partition)
                if owned is not None:
                    owned.problem = error
                    consumer.pause(owned.topic_partition)
                    self._deliver(owned)
            except ClientError as error:
                log.error("classic reading failed reason=%s: the streams raise this error", error)
                self._on_failure(error)
                return
            else:
                for key, records in found.items():
                    owned = self._owned.get(key)
                    if owned is None:
                        continue
                    if owned.searching:
                        self._start_found(owned, records[0].offset)
                    owned.add(records)
                    if len(owned.chunks) >= self._options.queued_max_message_chunks:
                        consumer.pause(key)
                    self._deliver(owned)

    def _search_all(self, consumer: Consumer, partitions: Collection[TopicPartition]) -> None:
        for key in sorted(partitions):
            owned = self._owned.get(key)
            if owned is not None:
                log.warning(
                    "offset out of range partition=%s: auto.offset.reset gives the new position",
                    key,
                )
                self._search(consumer, owned)

    def _search(self, consumer: Consumer, owned: OwnedPartition) -> None:
        """Seek to the position that auto.offset.reset gives. If `owned.consumed` is None, a
        background task sets `owned.consumed` to the offset of this position. So the next owner
        starts there even if this owner reads no record."""
        key = owned.topic_partition
        owned.searching = True
        if owned.in_hand is None and not owned.chunks:
            owned.consumed = None
        if self._options.auto_offset_reset == "smallest":
            consumer.seek_to_beginning(key)
        else:
            consumer.seek_to_end(key)
        self._tasks.start(
            self._find_start(consumer, owned), f"classic consumer start offset of {key}"
        )

    async def _find_start(self, consumer: Consumer, owned: OwnedPartition) -> None:
        while self._is_current(owned) and owned.searching:
            try:
                start = await consumer.position(owned.topic_partition)
            except DeadlinePassed:
                continue
            except ClientError:
                return  # the partition was released meanwhile, or `_pump` raises the same error
            if self._is_current(owned) and owned.searching:
                self._start_found(owned, start)

    def _start_found(self, owned: OwnedPartition, start: int) -> None:
        owned.searching = False
        log.info(
            "position reset partition=%s to=%s offset=%d",
            owned.topic_partition, self._options.auto_offset_reset, start,
        )  # fmt: skip
        if owned.consumed is None:
            owned.consumed = start
            self._on_start_found()
