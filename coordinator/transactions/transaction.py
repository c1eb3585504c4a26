"""A transactional id with its last transaction, as immutable values: the content of a record of
`__transaction_state`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pybroker.coordinator.transactions.states import LEGAL_MOVES, IllegalMove, TransactionState
from pybroker.model import NO_TIMESTAMP, TopicPartition

EPOCH_MAX: Final = 32_766
"""The highest epoch that a producer gets. One more epoch remains for the coordinator, so that it
can always fence the producer, as in Kafka. After this epoch the producer gets a new producer id."""
_NONE: Final[frozenset[TopicPartition]] = frozenset()


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a producer."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id with its producer and its last transaction. Times are in ms since 1970.
    `start_ms` is -1 before the producer's first transaction. `partitions` is empty unless the
    transaction is open or prepared."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    start_ms: int = NO_TIMESTAMP

    @property
    def is_exhausted(self) -> bool:
        """Whether the epoch has the highest possible value, so that the producer needs a new
        producer id."""
        return self.producer.epoch >= EPOCH_MAX

    @property
    def deadline_ms(self) -> int:
        """When an open transaction has to be aborted, in ms since 1970."""
        return self.start_ms + self.timeout_ms

    def begun(self, producer: ProducerIdAndEpoch, timeout_ms: int, now_ms: int) -> Transaction:
        """Return the state after InitProducerId: Empty, which means that no transaction is open.
        `producer` is the producer id and epoch that InitProducerId returns."""
        return self.moved_to(
            TransactionState.EMPTY,
            now_ms,
            producer=producer,
            timeout_ms=timeout_ms,
            partitions=_NONE,
            start_ms=NO_TIMESTAMP,
        )

    def with_partitions(self, added: frozenset[TopicPartition], now_ms: int) -> Transaction:
        """Return the state Ongoing with these partitions added. Begins a transaction unless one is
        open."""
        is_open = self.state is TransactionState.ONGOING
        return self.moved_to(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions | added,
            start_ms=self.start_ms if is_open else now_ms,
        )

    def fenced(self) -> Transaction:
        """Return the state PrepareEpochFence, with the epoch raised by 1. No producer gets this
        epoch."""
        producer = self.producer._replace(epoch=self.producer.epoch + 1)
        return self.moved_to(
            TransactionState.PREPARE_EPOCH_FENCE, self.updated_ms, producer=producer
        )

    def prepared(self, now_ms: int, *, is_commit: bool) -> Transaction:
        """Return the state PrepareCommit or PrepareAbort."""
        states = TransactionState
        return self.moved_to(states.PREPARE_COMMIT if is_commit else states.PREPARE_ABORT, now_ms)

    def completed(self, now_ms: int) -> Transaction:
        """Return a copy in the state CompleteCommit or CompleteAbort, without partitions."""
        states = TransactionState
        is_commit = self.state is states.PREPARE_COMMIT
        target = states.COMPLETE_COMMIT if is_commit else states.COMPLETE_ABORT
        return self.moved_to(target, now_ms, partitions=_NONE)

    def expired(self) -> Transaction:
        """Return a copy with the state Dead. The copy's record is a tombstone."""
        return self.moved_to(TransactionState.DEAD, self.updated_ms)

    def moved_to(self, state: TransactionState, now_ms: int, **changes: Any) -> Transaction:
        """Return a copy with the state `state`, the update time `now_ms` and the other `changes`.
        Raises IllegalMove."""
        if self.state not in LEGAL_MOVES[state]:
            raise IllegalMove(
                f"transactional_id={self.transactional_id} cannot go from {self.state.value} to"
                f" {state.value}"
            )
        return replace(self, state=state, updated_ms=now_ms, **changes)


def new_transaction(
    transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int
) -> Transaction:
    """Return the first state of a transactional id: Empty, with epoch 0."""
    return Transaction(
        transactional_id,
        ProducerIdAndEpoch(producer_id, 0),
        timeout_ms,
        TransactionState.EMPTY,
        _NONE,
        now_ms,
    )
