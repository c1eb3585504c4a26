"""`pybroker.client.Producer` with the methods of `transaction_requests.TransactionalProducer`, so
that simulated clients can use either."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from pybroker.client import Delivery, Producer
from pybroker.client.errors import ClientError, DeadlinePassed
from pybroker.client.identity import ProducerIdentity
from pybroker.client.keywords import CompressionType
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.testing.simulation.workload.options import PRODUCER_OPTIONS
from pybroker.testing.simulation.workload.transaction_requests import Settled

_END_ATTEMPTS = 4
"""The maximum number of calls of commit_transaction or abort_transaction for one transaction. Each
call takes at most `max_block_ms`."""


class ApiProducer:
    """A transactional producer of `pybroker.client`. It adds partitions and groups to the
    transaction when records and offsets are sent."""

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        timeout_ms: int,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        codec: CompressionType,
        linger_ms: int,
    ) -> None:
        self._rng = rng
        self._producer = Producer(
            bootstrap,
            clock=clock,
            rng=rng,
            client_id=client_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=codec,
            linger_ms=linger_ms,
            **PRODUCER_OPTIONS,
        )

    @property
    def _identity(self) -> ProducerIdentity:
        # Applications do not need it, so that the producer has no public name for it.
        transactions = self._producer._transactions
        assert transactions is not None
        return transactions.identity

    @property
    def producer_id(self) -> int:
        return self._identity.producer_id

    @property
    def epoch(self) -> int:
        return self._identity.producer_epoch

    async def start(self) -> None:
        """Connect, and get the next epoch of the transactional id. Raises ClientError."""
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.close()

    async def identify(self, *, keep: bool = False) -> None:
        """Do nothing. `Producer` itself requests its epochs (InitProducerId), in `start` and
        later."""

    def begin(self) -> None:
        """Begin a transaction. Raises ClientError."""
        self._producer.begin_transaction()

    async def add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing: the producer adds partitions by itself."""

    async def add_offsets(self, group: str) -> None:
        """Do nothing: `Producer.send_offsets` adds the group to the transaction."""

    async def end(self, *, is_commit: bool) -> None:
        """Commit or abort the transaction. Raises ClientError. The attribute `definite` of this
        error is False if the coordinator may have processed the commit or the abort."""
        definite = True
        for attempt in range(_END_ATTEMPTS):
            try:
                if is_commit:
                    await self._producer.commit_transaction()
                else:
                    await self._producer.abort_transaction()
            except DeadlinePassed as error:
                definite = definite and error.definite
                if attempt == _END_ATTEMPTS - 1:
                    error.definite = definite
                    raise
            else:
                return

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """In the transaction, commit offsets of a group that has no members."""
        await self._producer.send_offsets(offsets, group)

    async def produce(
        self, partition: TopicPartition, values: Sequence[str], settled: Settled
    ) -> None:
        """Send the values. At random, wait until all are acknowledged, or return at once. `settled`
        is called with the index and the outcome of each value. Raises ClientError."""
        topic, number = partition
        deliveries = list[Delivery]()
        for place, value in enumerate(values):
            try:
                delivery = await self._producer.send(topic, value.encode(), partition=number)
            except ClientError as error:
                for left in range(place, len(values)):
                    settled(left, error)
                raise
            delivery.add_done_callback(
                lambda done, place=place: settled(place, _outcome(done))  # type: ignore[misc]
            )
            deliveries.append(delivery)
        if self._rng.random() < 0.5:
            await asyncio.gather(*deliveries)


def _outcome(done: Delivery) -> int | BaseException:
    error = done.exception()
    return done.result().offset if error is None else error
