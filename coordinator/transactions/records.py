"""The records of `__transaction_state`, in Kafka's bytes. A value of None is a tombstone. The
broker reads the value versions 0 and 1, and writes version 0, as Kafka 3.9 does."""

from __future__ import annotations

import struct
from itertools import groupby
from typing import Final

from pybroker.coordinator.transactions.states import STORED, TransactionState
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.codec import decode_message, encode_message
from pybroker.wire.primitives import Buffer
from pybroker.wire.schema import (
    Message,
    array,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    message,
    string,
)

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0
VALUE_VERSION_MAX: Final = 1
_FIRST_FLEXIBLE: Final = 1

_VERSION = struct.Struct(">h")


@message
class _TransactionKey(Message):
    transactional_id: str = string("The transactional id.")


@message
class _Partitions(Message):
    topic: str = string("The topic's name.")
    partition_ids: list[int] = int32_array("The numbers of the partitions.")


@message
class _TransactionValue(Message):
    """The stored form of a `Transaction`."""

    producer_id: int = int64("The producer id of the transactional id.")
    producer_epoch: int = int16("The current epoch of the producer id.")
    transaction_timeout_ms: int = int32("The timeout of the producer's transactions, in ms.")
    transaction_status: int = int8("The number of the state.")
    transaction_partitions: list[_Partitions] | None = array(
        _Partitions, "The partitions of the transaction; null in the state Empty.", nullable_since=0
    )
    transaction_last_update_timestamp_ms: int = int64(
        "The time of the last change, in ms since 1970."
    )
    transaction_start_timestamp_ms: int = int64(
        "When the transaction began, in ms since 1970; -1 if none has begun."
    )


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of the record of a transactional id. Raises ValueError for an id of more than
    32,767 bytes."""
    key = _TransactionKey(transactional_id=transactional_id)
    return _VERSION.pack(KEY_VERSION) + encode_message(key, KEY_VERSION, False)


def decode_key(data: Buffer) -> str | None:
    """Return the transactional id. Return None if the version is unknown; the record must then be
    ignored. Raises MalformedInput."""
    if _version_of(data) != KEY_VERSION:
        return None
    body = memoryview(data)[_VERSION.size :]
    found = decode_message(_TransactionKey, KEY_VERSION, False, body, to_the_end=False)
    return found.transactional_id


def encode_value(transaction: Transaction) -> bytes:
    """Encode in version 0. Raises ValueError for a topic name of more than 32,767 bytes."""
    keys = sorted(transaction.partitions)
    is_empty = transaction.state is TransactionState.EMPTY
    value = _TransactionValue(
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=None
        if is_empty
        else [
            _Partitions(topic=topic, partition_ids=[key.partition for key in some])
            for topic, some in groupby(keys, lambda key: key.topic)
        ],
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    return _VERSION.pack(VALUE_VERSION) + encode_message(value, VALUE_VERSION, False)


def decode_value(transactional_id: str, data: Buffer) -> Transaction:
    """Decode version 0 or 1. Raises MalformedInput."""
    found = _decoded_value(data)
    state = STORED.get(found.transaction_status)
    if state is None:
        raise MalformedInput(
            f"the transaction status is {found.transaction_status}, expected 0 to 5"
        )
    partitions = found.transaction_partitions or []
    return Transaction(
        transactional_id,
        ProducerIdAndEpoch(found.producer_id, found.producer_epoch),
        found.transaction_timeout_ms,
        state,
        frozenset(
            TopicPartition(each.topic, number)
            for each in partitions
            for number in each.partition_ids
        ),
        found.transaction_last_update_timestamp_ms,
        found.transaction_start_timestamp_ms,
    )


def _decoded_value(data: Buffer) -> _TransactionValue:
    version = _version_of(data)
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise MalformedInput(
            f"the value of a transaction has version {version}, expected 0 to {VALUE_VERSION_MAX}"
        )
    body = memoryview(data)[_VERSION.size :]
    is_flexible = version >= _FIRST_FLEXIBLE
    return decode_message(_TransactionValue, version, is_flexible, body, to_the_end=False)


def _version_of(data: Buffer) -> int:
    if len(data) < _VERSION.size:
        raise MalformedInput(
            f"a key or value has {len(data)} bytes, expected at least 2 bytes for its version"
        )
    version: int = _VERSION.unpack_from(data)[0]
    return version
