"""Fetches the partitions that are owned, and lays the records where their streams find them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pybroker.background import TaskOwner
from pybroker.classic.claims import Claim
from pybroker.classic.options import ClassicOptions
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

logger = logging.getLogger(__name__)

_WAIT_MS = 60_000


class Reader:
    """Owns a `Consumer` and the task that empties it, from `start` to `close`.

    `deliver` is called with each claim that has got something new; `on_start_found` when a
    partition without a valid offset has got one; `on_failure` for what ends all reading.
    """

    def __init__(
        self,
        options: ClassicOptions,
        *,
        clock: Clock,
        rng: Rng,
        deliver: Callable[[Claim], None],
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
        self._claims: Mapping[TopicPartition, Claim] = {}
        self._has_claims = asyncio.Event()
        self._tasks = TaskOwner(lambda error: on_failure(Closed(f"reading has failed: {error!r}")))

    def consumer(self) -> Consumer:
        """Raises Closed while it is not started."""
        if self._consumer is None:
            raise Closed("the consumer does not read")
        return self._consumer

    @property
    def is_started(self) -> bool:
        return self._consumer is not None

    async def start(self, addresses: Sequence[str]) -> None:
        """Raises NoBrokers."""
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
            **({"group_id": options.group_id} if options.offsets_storage == "kafka" else {}),
        )
        await consumer.start()
        self._consumer = consumer
        self._tasks.start(self._pump(consumer), "classic consumer pump")

    async def close(self) -> None:
        """Idempotent."""
        try:
            await self._tasks.close()
        finally:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                await consumer.close()

    def read(self, claims: Mapping[TopicPartition, Claim], new: Iterable[Claim]) -> None:
        """Read exactly these from now on; the `new` ones from where their group was, the others go
        on."""
        self._claims = dict(claims)
        if claims:
            self._has_claims.set()
        else:
            self._has_claims.clear()
        if self._consumer is None:
            return
        self._consumer.assign(self._claims)
        for claim in new:
            if claim.consumed is None:
                self._search(self._consumer, claim)
            else:
                self._consumer.seek(claim.topic_partition, claim.consumed)

    def room_again(self, claim: Claim) -> None:
        """Its stream has taken something."""
        if (
            self._consumer is not None
            and self._is_current(claim)
            and claim.problem is None
            and len(claim.chunks) < self._options.queued_max_message_chunks
        ):
            self._consumer.resume(claim.topic_partition)

    # Inside

    def _is_current(self, claim: Claim) -> bool:
        return self._claims.get(claim.topic_partition) is claim

    async def _pump(self, consumer: Consumer) -> None:
        while True:
            await self._has_claims.wait()
            try:
                found = await consumer.getmany(_WAIT_MS)
            except OffsetUnavailable as error:
                self._search_all(consumer, error.partitions)
            except DamagedRecords as error:
                claim = self._claims.get(error.topic_partition)
                if claim is not None:
                    claim.problem = error
                    consumer.pause(claim.topic_partition)
                    self._deliver(claim)
            except ClientError as error:
                logger.error("event=classic-reading-failed reason=%s", error)
                self._on_failure(error)
                return
            else:
                for key, records in found.items():
                    claim = self._claims.get(key)
                    if claim is None:
                        continue
                    if claim.searching:
                        self._start_found(claim, records[0].offset)
                    claim.add(records)
                    if len(claim.chunks) >= self._options.queued_max_message_chunks:
                        consumer.pause(key)
                    self._deliver(claim)

    def _search_all(self, consumer: Consumer, partitions: Collection[TopicPartition]) -> None:
        for key in sorted(partitions):
            claim = self._claims.get(key)
            if claim is not None:
                logger.warning("event=offset-out-of-range partition=%s", key)
                self._search(consumer, claim)

    def _search(self, consumer: Consumer, claim: Claim) -> None:
        """Start as auto.offset.reset says, and know where that was before anything is consumed: the
        next owner has to start there, too."""
        key = claim.topic_partition
        claim.searching = True
        if claim.in_hand is None and not claim.chunks:
            claim.consumed = None
        if self._options.auto_offset_reset == "smallest":
            consumer.seek_to_beginning(key)
        else:
            consumer.seek_to_end(key)
        self._tasks.start(self._find_start(consumer, claim), f"find the start of {key}")

    async def _find_start(self, consumer: Consumer, claim: Claim) -> None:
        while self._is_current(claim) and claim.searching:
            try:
                start = await consumer.position(claim.topic_partition)
            except DeadlinePassed:
                continue
            except ClientError:
                return  # taken away meanwhile, or the pump meets the same error
            if self._is_current(claim) and claim.searching:
                self._start_found(claim, start)

    def _start_found(self, claim: Claim, start: int) -> None:
        claim.searching = False
        logger.info(
            "event=position-reset partition=%s to=%s offset=%d",
            claim.topic_partition, self._options.auto_offset_reset, start,
        )  # fmt: skip
        if claim.consumed is None:
            claim.consumed = start
            self._on_start_found()
