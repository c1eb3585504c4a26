"""The exceptions of a transactional producer, with advice for the application."""

from __future__ import annotations

from typing import Final

from pybroker.client.errors import (
    AbortableTransactionError,
    ClientError,
    DeadlinePassed,
    FatalTransactionError,
    ProducerFenced,
)
from pybroker.client.options import ProducerOptions
from pybroker.client.transactions.states import LEFT_GROUP, State
from pybroker.errors import ErrorCode

_UNKNOWN: Final = (
    "its last transaction may be committed, because an attempt to commit it "
    "got no response: read the transaction's records or offsets to learn the "
    "outcome"
)


class Failures:
    """Creates the exceptions that a transactional producer raises."""

    def __init__(self, transactional_id: str, options: ProducerOptions) -> None:
        self._id = transactional_id
        self._options = options

    def fenced(self, code: ErrorCode, *, definite: bool = True) -> ProducerFenced:
        """Return the exception for a producer that another producer has replaced. `definite` is
        False if the outcome of the transaction is unknown: the coordinator may have committed the
        transaction."""
        outcome = "its open transaction is aborted" if definite else _UNKNOWN
        return ProducerFenced(
            self._id,
            f"this producer is fenced ({code.name}): another producer was started with the same"
            " transactional.id, or a transaction was open for longer than transaction.timeout.ms"
            f" = {self._options.transaction_timeout_ms}. Close this producer; {outcome}",
            definite=definite,
        )

    def abortable(self, text: str) -> AbortableTransactionError:
        return AbortableTransactionError(
            self._id, f"{text}. Abort the transaction, then repeat the whole transaction"
        )

    def fatal(self, text: str, *, definite: bool = True) -> FatalTransactionError:
        outcome = "" if definite else f"; {_UNKNOWN}"
        return FatalTransactionError(
            self._id,
            f"{text}. Close this producer, remove the cause, and start a new producer{outcome}",
            definite=definite,
        )

    def late(
        self, state: State, text: str, problem: ClientError | None = None, *, definite: bool = True
    ) -> DeadlinePassed:
        """Return the exception for an operation that took longer than max.block.ms. `definite` is
        false if the coordinator may have processed a request."""
        last = f"; last: {problem}" if problem else ""
        to_do = {
            State.COMMITTING: "; the outcome is unknown: call commit_transaction again",
            State.ABORTING: "; call abort_transaction again",
        }.get(state, "")
        return DeadlinePassed(
            f"transactional.id {self._id}: {text} within max.block.ms"
            f" = {self._options.max_block_ms}{last}{to_do}",
            definite=definite,
        )

    def undelivered(self) -> DeadlinePassed:
        return DeadlinePassed(
            f"transactional.id {self._id}: the records of the transaction were not delivered"
            f" within max.block.ms = {self._options.max_block_ms}; call commit_transaction again,"
            " or abort_transaction"
        )


def advice(code: ErrorCode | None) -> str:
    """Return what to do about an error code of TxnOffsetCommit; empty for most codes."""
    if code not in LEFT_GROUP:
        return ""
    return (
        "; the consumer has left its generation, and other members may own its "
        "partitions: after the abort, continue from the committed offsets"
    )
