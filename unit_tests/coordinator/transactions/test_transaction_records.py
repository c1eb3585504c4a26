"""Tests that the records of __transaction_state have Kafka's bytes. The expected bytes were made by
hand from TransactionLogKey.json and TransactionLogValue.json of Kafka 3.9."""

from __future__ import annotations

import struct

import pytest

from pybroker.coordinator.transactions.records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from pybroker.coordinator.transactions.states import STORED, TransactionState
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition

KEYS = frozenset({TopicPartition("b", 7), TopicPartition("a", 2), TopicPartition("a", 0)})
ONGOING = Transaction(
    "id", ProducerIdAndEpoch(4000, 3), 60_000, TransactionState.ONGOING, KEYS, 1_700, 1_600
)
EMPTY = Transaction(
    "id", ProducerIdAndEpoch(4000, 3), 60_000, TransactionState.EMPTY, frozenset(), 1_700
)
COMPLETE = Transaction(
    "id",
    ProducerIdAndEpoch(4000, 3),
    60_000,
    TransactionState.COMPLETE_ABORT,
    frozenset(),
    1_800,
    1_600,
)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def fixed(status: int) -> bytes:
    """Version 0, producer id, epoch, timeout, status."""
    return struct.pack(">hqhib", 0, 4000, 3, 60_000, status)


EXPECTED = [
    (EMPTY, fixed(0) + struct.pack(">iqq", -1, 1_700, -1)),
    (
        ONGOING,
        fixed(1)
        + struct.pack(">i", 2)
        + text("a")
        + struct.pack(">iii", 2, 0, 2)
        + text("b")
        + struct.pack(">ii", 1, 7)
        + struct.pack(">qq", 1_700, 1_600),
    ),
    (COMPLETE, fixed(5) + struct.pack(">iqq", 0, 1_800, 1_600)),
]


@pytest.mark.parametrize(("transaction", "encoded"), EXPECTED, ids=["empty", "ongoing", "complete"])
def test_value_has_kafkas_bytes(transaction: Transaction, encoded: bytes) -> None:
    assert encode_value(transaction).hex() == encoded.hex()
    assert decode_value("id", encoded) == transaction


def test_key_has_kafkas_bytes() -> None:
    assert encode_key("tr-1") == b"\x00\x00" + text("tr-1")
    assert decode_key(b"\x00\x00" + text("tr-1")) == "tr-1"


def test_transactional_id_of_the_longest_length_is_stored() -> None:
    longest = "x" * 32_767
    assert decode_key(encode_key(longest)) == longest
    with pytest.raises(ValueError, match=r"32,?767"):
        encode_key(longest + "x")


def test_key_of_another_version_is_ignored() -> None:
    assert decode_key(b"\x00\x01" + text("tr-1")) is None


def test_flexible_value_is_read() -> None:
    flexible = (
        struct.pack(">hqhib", 1, 4000, 3, 60_000, 1)
        + b"\x02"  # one topic
        + b"\x02b"
        + b"\x02"
        + struct.pack(">i", 7)
        + b"\x00"  # no tagged fields of the topic
        + struct.pack(">qq", 1_700, 1_600)
        + b"\x00"
    )
    read = decode_value("id", flexible)
    assert read.partitions == {TopicPartition("b", 7)}
    assert (read.updated_ms, read.start_ms) == (1_700, 1_600)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        struct.pack(">h", 2),
        struct.pack(">h", -1),
        EXPECTED[1][1][:-1],
        struct.pack(">hqhibiqq", 0, 1, 0, 1, 8, -1, 0, 0),
        struct.pack(">hqhibiqq", 0, 1, 0, 1, 6, -1, 0, 0),
    ],
)
def test_damaged_value_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedInput):
        decode_value("id", data)


def test_states_that_are_never_stored_are_dead_and_prepare_epoch_fence() -> None:
    missing = set(TransactionState) - set(STORED.values())
    assert {state.number for state in missing} == {6, 7}
    assert [STORED[number].value for number in sorted(STORED)] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
    ]
