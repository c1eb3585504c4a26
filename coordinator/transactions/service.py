"""The transaction coordinators' interface for request handlers: finds the shard of a transactional
id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from pybroker.coordinator.transactions.coordinator import TransactionCoordinator
from pybroker.coordinator.transactions.decisions import Init
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.deferred import Deferred
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition


class TransactionShards(Protocol):
    """The coordinator shards of this broker."""

    def shard_for(self, partition: int) -> TransactionCoordinator:
        """Return the coordinator of this `__transaction_state` partition. Raises BrokerError:
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE."""

    def may_be_elsewhere(self, partition: int) -> bool:
        """Whether another broker may have taken over this `__transaction_state` partition."""

    def serving(self) -> Mapping[int, TransactionCoordinator]: ...

    @property
    def loading(self) -> Sequence[int]: ...


class TransactionService:
    """Coordinates the transactional ids for which this broker is the coordinator. A method that
    takes a transactional id raises BrokerError with the error code to send to the client.

    `partition_of` returns the `__transaction_state` partition of a transactional id, or raises
    BrokerError COORDINATOR_NOT_AVAILABLE while the number of partitions is unknown.
    """

    def __init__(self, shards: TransactionShards, partition_of: Callable[[str], int]) -> None:
        self._shards = shards
        self._partition_of = partition_of

    def may_be_elsewhere(self, partition: int) -> bool:
        """Whether another broker may have taken over this `__transaction_state` partition from this
        broker."""
        return self._shards.may_be_elsewhere(partition)

    # producers

    async def init_producer_id(self, transactional_id: str, call: Init) -> ProducerIdAndEpoch:
        return await self._shard_of(transactional_id).init_producer_id(transactional_id, call)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
    ) -> Awaitable[None] | None:
        shard = self._shard_of(transactional_id)
        return shard.add_partitions(transactional_id, producer, partitions)

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, is_commit: bool
    ) -> Deferred[None] | None:
        shard = self._shard_of(transactional_id)
        return shard.end(transactional_id, producer, is_commit=is_commit)

    # brokers

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return an error code for each partition. The code is NONE if the partition is in the
        producer's open transaction."""
        shard = self._shard_of(transactional_id)
        await shard.context.confirm_current()
        return shard.verify(transactional_id, producer, partitions)

    def verify_at_once(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        """Return the result of `verify`, or None if only ZooKeeper can prove that this broker still
        is the coordinator."""
        shard = self._shard_of(transactional_id)
        if not shard.context.is_certainly_current:
            return None
        return shard.verify(transactional_id, producer, partitions)

    # operators

    def describe(self, transactional_id: str) -> Transaction:
        found = self._shard_of(transactional_id).describe(transactional_id)
        if found is None:
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return found

    def transactions(self) -> Iterator[Transaction]:
        """Yield the states of all transactional ids of this broker. Raises BrokerError
        COORDINATOR_LOAD_IN_PROGRESS while a shard is loading."""
        if self._shards.loading:
            raise BrokerError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "this broker is still loading partitions of __transaction_state",
            )
        for shard in [*self._shards.serving().values()]:
            yield from shard.transactions()

    def _shard_of(self, transactional_id: str) -> TransactionCoordinator:
        if not transactional_id:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                "the transactional id is empty, expected at least one character",
            )
        return self._shards.shard_for(self._partition_of(transactional_id))
