"""The states of a transactional producer, and its reactions to error codes, as in the Java client.
A code that is not in the reaction table of a request is retried if it is retriable. Otherwise the
code makes the producer unusable."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from pybroker.errors import ErrorCode


class State(enum.Enum):
    """The state of a transactional producer."""

    STARTING = "the producer has no producer id yet"
    READY = "no transaction is open"
    OPEN = "a transaction is open"
    COMMITTING = "a commit was called and is not confirmed"
    ABORTABLE = "an operation of the transaction has failed, so it can only be aborted"
    ABORTING = "an abort was called and is not confirmed"
    FAILED = "the producer cannot be used any more"


LEGAL_MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.STARTING: frozenset({State.READY, State.FAILED}),
    State.READY: frozenset({State.OPEN, State.FAILED}),
    State.OPEN: frozenset({State.COMMITTING, State.ABORTABLE, State.ABORTING, State.FAILED}),
    State.COMMITTING: frozenset({State.READY, State.ABORTABLE, State.ABORTING, State.FAILED}),
    State.ABORTABLE: frozenset({State.ABORTING, State.FAILED}),
    State.ABORTING: frozenset({State.READY, State.FAILED}),
    State.FAILED: frozenset(),
}


class Reaction(enum.IntEnum):
    """The reaction to an error code. A larger number is more serious. If a response has several
    codes, the most serious reaction is taken."""

    DONE = 0
    """The request succeeded."""
    AGAIN = 1
    """Send the request again after a backoff."""
    FIND = 2
    """Look up the coordinator, then send the request again."""
    ABORT = 3
    """The transaction can only be aborted."""
    NEW_EPOCH = 4
    """The transaction can only be aborted, and the producer then needs the next epoch (KIP-360)."""
    FENCED = 5
    """Another producer with the transactional id has replaced this producer."""
    FATAL = 6
    """The producer cannot be used any more."""


_COORDINATOR: Final = {
    ErrorCode.NONE: Reaction.DONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.AGAIN,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.FIND,
    ErrorCode.NOT_COORDINATOR: Reaction.FIND,
    ErrorCode.CONCURRENT_TRANSACTIONS: Reaction.AGAIN,
    ErrorCode.PRODUCER_FENCED: Reaction.FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.FENCED,
}
_TRANSACTION: Final = {
    **_COORDINATOR,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Reaction.NEW_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID: Reaction.NEW_EPOCH,
}
INIT: Final[Mapping[ErrorCode, Reaction]] = _COORDINATOR
ADD_PARTITIONS: Final[Mapping[ErrorCode, Reaction]] = {
    **_TRANSACTION,
    # Another partition of the request has the error that decides.
    ErrorCode.OPERATION_NOT_ATTEMPTED: Reaction.AGAIN,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reaction.ABORT,
    ErrorCode.INVALID_TOPIC_EXCEPTION: Reaction.ABORT,
}
ADD_OFFSETS: Final[Mapping[ErrorCode, Reaction]] = {
    **_TRANSACTION,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Reaction.ABORT,
    ErrorCode.INVALID_GROUP_ID: Reaction.ABORT,
}
COMMIT_OFFSETS: Final[Mapping[ErrorCode, Reaction]] = {
    **_TRANSACTION,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.FIND,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Reaction.ABORT,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reaction.ABORT,
    ErrorCode.INVALID_GROUP_ID: Reaction.ABORT,
    ErrorCode.ILLEGAL_GENERATION: Reaction.ABORT,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.ABORT,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.ABORT,
    ErrorCode.FENCED_INSTANCE_ID: Reaction.ABORT,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: Reaction.ABORT,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Reaction.ABORT,
}
END: Final[Mapping[ErrorCode, Reaction]] = _TRANSACTION
LEFT_GROUP: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""The codes of TxnOffsetCommit which mean that other members may own the partitions."""


def decide(
    table: Mapping[ErrorCode, Reaction], codes: Iterable[ErrorCode]
) -> tuple[Reaction, ErrorCode]:
    """Return the most serious reaction to the error codes of one response, and the code that causes
    it. With no codes the reaction is fatal."""
    reactions = [
        (table.get(code, Reaction.AGAIN if code.retriable else Reaction.FATAL), code)
        for code in codes
    ]
    return max(
        reactions,
        key=lambda each: each[0],
        default=(Reaction.FATAL, ErrorCode.UNKNOWN_SERVER_ERROR),
    )
