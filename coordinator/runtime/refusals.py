"""The error after which a shard (the coordinator of one partition) has to end, and the translation
of the log's errors into the codes that clients of coordinators expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, PybrokerError

_CLIENT_CODES: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
}
_TRANSACTIONAL_CODES: Final[Mapping[ErrorCode, ErrorCode]] = {
    **_CLIENT_CODES,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    # Old producers repeat a request after COORDINATOR_LOAD_IN_PROGRESS. They do not expect
    # NETWORK_EXCEPTION.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}


class Superseded(PybrokerError):
    """The shard has to end. This broker no longer leads the partition, or became its leader again
    after an interruption, or the partition was deleted."""


def client_error(error: BrokerError) -> BrokerError:
    """Translate an error of the log into the error for the client."""
    return BrokerError(_CLIENT_CODES.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), error.detail)


def transactional_error(error: BrokerError) -> BrokerError:
    """Translate an error of the log, or of a transaction's verification, for the producer. As in
    Kafka, a code without a translation stays the same."""
    return BrokerError(_TRANSACTIONAL_CODES.get(error.code, error.code), error.detail)


def not_coordinator(detail: str) -> BrokerError:
    return BrokerError(ErrorCode.NOT_COORDINATOR, detail)
