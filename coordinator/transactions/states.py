"""The states of a transactional id, the allowed transitions, and each state's answer to each
request. The tables are in `docs/transactions.rst`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pybroker.errors import PybrokerError


class TransactionState(enum.Enum):
    """The state of a transactional id. The values are Kafka's names, as in DescribeTransactions."""

    number: int
    """The number of the state in records."""

    def __new__(cls, name: str, number: int) -> TransactionState:
        member = object.__new__(cls)
        member._value_ = name
        member.number = number
        return member

    EMPTY = ("Empty", 0)
    """A producer has its producer id and epoch, and has begun no transaction."""
    ONGOING = ("Ongoing", 1)
    """A transaction with at least one partition is open."""
    PREPARE_COMMIT = ("PrepareCommit", 2)
    """The transaction is committed, and the coordinator sends markers to its partitions."""
    PREPARE_ABORT = ("PrepareAbort", 3)
    """The transaction is aborted, and the coordinator sends markers to its partitions."""
    COMPLETE_COMMIT = ("CompleteCommit", 4)
    """Every partition of the committed transaction has its marker."""
    COMPLETE_ABORT = ("CompleteAbort", 5)
    """Every partition of the aborted transaction has its marker."""
    DEAD = ("Dead", 6)
    """The transactional id has expired. This state is never stored; a tombstone is stored
    instead."""
    PREPARE_EPOCH_FENCE = ("PrepareEpochFence", 7)
    """The producer gets a higher epoch, and its open transaction is aborted. This state is never
    stored; PrepareAbort with the higher epoch is stored instead."""


LEGAL_MOVES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        TransactionState.EMPTY: frozenset(
            {
                TransactionState.EMPTY,
                TransactionState.COMPLETE_COMMIT,
                TransactionState.COMPLETE_ABORT,
            }
        ),
        TransactionState.ONGOING: frozenset(
            {
                TransactionState.ONGOING,
                TransactionState.EMPTY,
                TransactionState.COMPLETE_COMMIT,
                TransactionState.COMPLETE_ABORT,
            }
        ),
        TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
        TransactionState.PREPARE_ABORT: frozenset(
            {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE}
        ),
        TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
        TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
        TransactionState.DEAD: frozenset(
            {
                TransactionState.EMPTY,
                TransactionState.COMPLETE_COMMIT,
                TransactionState.COMPLETE_ABORT,
            }
        ),
        TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
    }
)
"""Target state -> the states from which a transactional id may move to it, as in Kafka."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
IDLE: Final = LEGAL_MOVES[TransactionState.DEAD]
"""The states without a transaction. A transactional id can expire only in these states."""
STORED: Final[Mapping[int, TransactionState]] = MappingProxyType(
    {
        state.number: state
        for state in TransactionState
        if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
    }
)
"""Number in a record -> state, for the states that are stored."""


class IllegalMove(PybrokerError):
    """A change of state that LEGAL_MOVES does not allow: a bug of the coordinator."""


class TransactionRequest(enum.Enum):
    """The requests whose answer depends on the state of the transactional id (see `ANSWERS`). In
    any state, the coordinator can also answer INVALID_PRODUCER_ID_MAPPING (49), PRODUCER_FENCED
    (90) or, while a new state is being written, CONCURRENT_TRANSACTIONS (51)."""

    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn or AddOffsetsToTxn"
    COMMIT = "EndTxn that commits"
    ABORT = "EndTxn that aborts"
    VERIFY = "verification of a partition"


_WAIT: Final = "51: retry"
_WAIT_FIRST: Final = (
    "51: retry. The coordinator sends this error only if the transaction has not ended after 0.1 s"
)
_WRONG: Final = "48: the transaction is not open"
_NOT_IN: Final = "48: the partition is not in the transaction"
_BEGINS: Final = "0: begins a transaction"
_NEXT_EPOCH: Final = "0: the next epoch"

ANSWERS: Final[Mapping[TransactionState, Mapping[TransactionRequest, str]]] = MappingProxyType(
    {
        TransactionState.EMPTY: {
            TransactionRequest.INIT: _NEXT_EPOCH,
            TransactionRequest.ADD: _BEGINS,
            TransactionRequest.COMMIT: _WRONG,
            TransactionRequest.ABORT: _WRONG,
            TransactionRequest.VERIFY: _NOT_IN,
        },
        TransactionState.ONGOING: {
            TransactionRequest.INIT: "51: raises the epoch and aborts the transaction; retry",
            TransactionRequest.ADD: "0: adds the partitions",
            TransactionRequest.COMMIT: "0: commits",
            TransactionRequest.ABORT: "0: aborts",
            TransactionRequest.VERIFY: "0 for a partition of the transaction, else 48",
        },
        TransactionState.PREPARE_COMMIT: {
            TransactionRequest.INIT: _WAIT,
            TransactionRequest.ADD: _WAIT_FIRST,
            TransactionRequest.COMMIT: _WAIT,
            TransactionRequest.ABORT: "48: the transaction is committed",
            TransactionRequest.VERIFY: _WAIT,
        },
        TransactionState.PREPARE_ABORT: {
            TransactionRequest.INIT: _WAIT,
            TransactionRequest.ADD: _WAIT_FIRST,
            TransactionRequest.COMMIT: "48: the transaction is aborted",
            TransactionRequest.ABORT: _WAIT,
            TransactionRequest.VERIFY: _WAIT,
        },
        TransactionState.COMPLETE_COMMIT: {
            TransactionRequest.INIT: _NEXT_EPOCH,
            TransactionRequest.ADD: _BEGINS,
            TransactionRequest.COMMIT: "0: the transaction is committed",
            TransactionRequest.ABORT: "48: the transaction is committed",
            TransactionRequest.VERIFY: _NOT_IN,
        },
        TransactionState.COMPLETE_ABORT: {
            TransactionRequest.INIT: _NEXT_EPOCH,
            TransactionRequest.ADD: _BEGINS,
            TransactionRequest.COMMIT: "48: the transaction is aborted",
            TransactionRequest.ABORT: "0: the transaction is aborted",
            TransactionRequest.VERIFY: _NOT_IN,
        },
    }
)
"""Stored state -> request -> the answer. Numbers are error codes."""
