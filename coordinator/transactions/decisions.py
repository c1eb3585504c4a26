"""The decisions on the requests of transactional producers: pure functions from the state of a
transactional id (None: unknown id) to an error code or to the next state.

As in Kafka 3.9, InitProducerId with an old epoch (KIP-360) aborts an open transaction. Without an
open transaction, the request gets PRODUCER_FENCED.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pybroker.coordinator.transactions.states import IDLE, PREPARED, TransactionState
from pybroker.coordinator.transactions.transaction import (
    ProducerIdAndEpoch,
    Transaction,
    new_transaction,
)
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Init:
    """An InitProducerId request. `expected`: the id and epoch of a producer that asks for its next
    epoch (KIP-360); None for a producer that has just started."""

    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """The decision to give the producer the id and epoch in `transaction`. `previous`: its earlier
    id and epoch; None for a producer that has just started."""

    transaction: Transaction
    previous: ProducerIdAndEpoch | None


@dataclass(frozen=True, slots=True)
class Fence:
    """The decision on InitProducerId while a transaction is open: raise the producer epoch, and
    abort the transaction. The request gets CONCURRENT_TRANSACTIONS, so the client repeats it."""

    transaction: Transaction


def needs_producer_id(transaction: Transaction | None, call: Init) -> bool:
    """Return whether `init_producer_id` needs an unused producer id for this call."""
    if transaction is None:
        return True
    is_current = call.expected in (None, transaction.producer)
    return transaction.state in IDLE and transaction.is_exhausted and is_current


def init_producer_id(
    transactional_id: str,
    transaction: Transaction | None,
    previous: ProducerIdAndEpoch | None,
    call: Init,
    new_id: int | None,
    now_ms: int,
) -> Begin | Fence | ErrorCode:
    """Decide on InitProducerId. `previous`: the producer's id and epoch before its last accepted
    InitProducerId. A producer that sends this id and epoch did not receive the last response. If no
    transaction is open, the producer gets the current id and epoch again. `new_id`: an unused
    producer id; None unless `needs_producer_id`."""
    if transaction is None:
        assert new_id is not None
        return Begin(new_transaction(transactional_id, new_id, call.timeout_ms, now_ms), None)
    current, expected = transaction.producer, call.expected
    is_known = expected in (None, current, previous)
    if expected is not None and expected.producer_id != current.producer_id and not is_known:
        return ErrorCode.PRODUCER_FENCED
    if transaction.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction.state is TransactionState.ONGOING:
        # Kafka compares the epoch only when no transaction is open.
        return Fence(transaction.fenced().prepared(now_ms, is_commit=False))
    if not is_known:
        return ErrorCode.PRODUCER_FENCED
    if expected not in (None, current):
        return Begin(transaction.begun(current, call.timeout_ms, now_ms), previous)
    if transaction.is_exhausted:
        assert new_id is not None
        given = ProducerIdAndEpoch(new_id, 0)
    else:
        given = current._replace(epoch=current.epoch + 1)
    return Begin(transaction.begun(given, call.timeout_ms, now_ms), expected)


def add_partitions(
    transaction: Transaction | None,
    producer: ProducerIdAndEpoch,
    added: frozenset[TopicPartition],
    now_ms: int,
) -> Transaction | ErrorCode:
    """Decide on AddPartitionsToTxn and AddOffsetsToTxn. Return the new state, or an error code:
    NONE if the open transaction already has all of the partitions."""
    fault = _fault_of(transaction, producer)
    if transaction is None or fault is not ErrorCode.NONE:
        return fault
    if transaction.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction.state is TransactionState.ONGOING and added <= transaction.partitions:
        return ErrorCode.NONE
    return transaction.with_partitions(added, now_ms)


def end(
    transaction: Transaction | None, producer: ProducerIdAndEpoch, now_ms: int, *, is_commit: bool
) -> Transaction | ErrorCode:
    """Decide on EndTxn. If the transaction is open, return it in its Prepare state. Otherwise
    return an error code. The code is NONE if the transaction has already ended with this
    outcome."""
    fault = _fault_of(transaction, producer)
    if transaction is None or fault is not ErrorCode.NONE:
        return fault
    states = TransactionState
    if transaction.state is states.ONGOING:
        return transaction.prepared(now_ms, is_commit=is_commit)
    if transaction.state is (states.PREPARE_COMMIT if is_commit else states.PREPARE_ABORT):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction.state is (states.COMPLETE_COMMIT if is_commit else states.COMPLETE_ABORT):
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def verify(
    transaction: Transaction | None,
    producer: ProducerIdAndEpoch,
    asked: Collection[TopicPartition],
) -> Mapping[TopicPartition, ErrorCode]:
    """Return for each partition NONE if it is in the producer's open transaction, else an error
    (KIP-890)."""
    fault = _fault_of(transaction, producer)
    if fault is ErrorCode.NONE and transaction is not None and transaction.state in PREPARED:
        fault = ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction is None or fault is not ErrorCode.NONE:
        return dict.fromkeys(asked, fault)
    return {
        key: ErrorCode.NONE if key in transaction.partitions else ErrorCode.INVALID_TXN_STATE
        for key in asked
    }


def time_out(transaction: Transaction, now_ms: int) -> Transaction | None:
    """If an open transaction has reached its timeout, return the state PrepareAbort with the next
    epoch, which fences the producer. Otherwise return None."""
    if transaction.state is not TransactionState.ONGOING or transaction.deadline_ms > now_ms:
        return None
    return transaction.fenced().prepared(now_ms, is_commit=False)


def is_expired(transaction: Transaction, now_ms: int, expiration_ms: int) -> bool:
    return transaction.state in IDLE and transaction.updated_ms <= now_ms - expiration_ms


def _fault_of(transaction: Transaction | None, producer: ProducerIdAndEpoch) -> ErrorCode:
    if transaction is None or transaction.producer.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.producer != producer:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE
