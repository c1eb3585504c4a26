"""The decisions of the producer state, as tables."""

from __future__ import annotations

import struct

import pytest

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.records.batch import SEQUENCE_MAX, read_header
from pybroker.records.control import ControlType, EndTransaction
from pybroker.storage.producer_snapshot import decode, encode
from pybroker.storage.producer_state import ProducerState
from unit_tests.storage.batches import FIRST_TIMESTAMP, header, marker

GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH
OK = ErrorCode.NONE
COMMIT = EndTransaction(ControlType.COMMIT, 3)


def state_after(*batches: tuple[int, int, int]) -> ProducerState:
    """Return the state of producer 9 after batches of (epoch, first sequence, records)."""
    state = ProducerState()
    offset = 0
    for epoch, sequence, count in batches:
        state.apply(header(9, sequence, count, epoch=epoch), offset, FIRST_TIMESTAMP)
        offset += count
    return state


def answer(state: ProducerState, epoch: int, sequence: int, count: int) -> ErrorCode | int:
    """Return the error code, or the first offset of the batch that the request repeats."""
    try:
        duplicate = state.check(header(9, sequence, count, epoch=epoch))
    except BrokerError as error:
        return error.code
    return OK if duplicate is None else duplicate.first_offset


FIVE = [(0, 0, 2), (0, 2, 2), (0, 4, 2), (0, 6, 2), (0, 8, 2)]


@pytest.mark.parametrize(
    ("before", "epoch", "sequence", "count", "expected"),
    [
        ([], 0, 0, 1, OK),
        ([], 0, 77, 1, OK),
        ([], 5, 77, 1, OK),
        (FIVE, 0, 10, 1, OK),
        (FIVE, 0, 11, 1, GAP),
        (FIVE, 0, 9, 1, GAP),
        (FIVE, 0, 8, 2, 8),
        (FIVE, 0, 0, 2, 0),
        (FIVE, 0, 8, 1, GAP),
        (FIVE, 0, 0, 4, GAP),
        ([*FIVE, (0, 10, 1)], 0, 0, 2, GAP),
        ([*FIVE, (0, 10, 1)], 0, 2, 2, 2),
        (FIVE, 1, 0, 1, OK),
        (FIVE, 1, 10, 1, GAP),
        ([(3, 0, 1)], 2, 1, 1, FENCED),
        ([(3, 0, 1)], 2, 0, 1, FENCED),
        ([(0, 0, 1), (1, 0, 1)], 1, 1, 1, OK),
        ([(0, SEQUENCE_MAX, 1)], 0, 0, 1, OK),
        ([(0, SEQUENCE_MAX - 1, 3)], 0, 1, 1, OK),
        ([(0, SEQUENCE_MAX - 1, 3)], 0, SEQUENCE_MAX - 1, 3, 0),
        ([(0, SEQUENCE_MAX, 1)], 0, 1, 1, GAP),
    ],
)
def test_sequences(
    before: list[tuple[int, int, int]], epoch: int, sequence: int, count: int, expected: int
) -> None:
    assert answer(state_after(*before), epoch, sequence, count) == expected


def test_two_producers_have_separate_states() -> None:
    state = state_after((0, 0, 1))
    assert state.check(header(8, 5)) is None


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    state = ProducerState()
    state.apply(header(9, 0, transactional=True), 0, 0)
    with pytest.raises(BrokerError) as caught:
        state.check(header(9, 1))
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert state.check(header(9, 1, transactional=True)) is None


def test_a_marker_of_a_replaced_coordinator_is_refused() -> None:
    state = state_after((0, 0, 1))
    end = read_header(marker(9, commit=True))
    state.apply(end, 1, 0, COMMIT)
    assert state.check(end, COMMIT) is None
    with pytest.raises(BrokerError) as caught:
        state.check(end, EndTransaction(ControlType.COMMIT, 2))
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_after_a_marker_with_a_new_epoch_sequences_begin_again() -> None:
    state = state_after((0, 0, 1))
    state.apply(read_header(marker(9, commit=True, producer_epoch=1)), 1, 0, COMMIT)
    assert answer(state, 0, 1, 1) is FENCED
    assert answer(state, 1, 1, 1) is GAP
    assert answer(state, 1, 0, 1) is OK


def test_only_idle_producers_without_a_transaction_expire() -> None:
    state = ProducerState()
    state.apply(header(1, 0), 0, 100)
    state.apply(header(2, 0), 1, 150)
    state.apply(header(3, 0, transactional=True), 2, 100)
    assert state.expire(200, 100) == 1
    assert sorted(state.entries) == [2, 3]


def test_a_snapshot_restores_the_producer_state() -> None:
    state = state_after(*FIVE, (0, 10, 1))
    state.apply(header(3, 7, epoch=4, transactional=True), 11, FIRST_TIMESTAMP)
    state.apply(read_header(marker(5, commit=True)), 12, 60, COMMIT)
    restored = ProducerState.restored(decode(encode(state.entries.values()), "s"))
    assert restored.entries == state.entries
    assert restored.open_transactions == {11: 3}


def test_a_snapshot_begins_as_kafkas_does() -> None:
    data = encode(state_after((2, 5, 3)).entries.values())
    assert len(data) == 10 + 46
    assert struct.unpack_from(">h", data) == (1,)
    row = struct.unpack_from(">iqhiqiqiq", data, 6)
    assert row == (1, 9, 2, 7, 2, 2, FIRST_TIMESTAMP, -1, -1)


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_a_damaged_snapshot_is_refused(at: int) -> None:
    data = bytearray(encode(state_after(*FIVE).entries.values()))
    data[at] ^= 4
    with pytest.raises(CorruptionError):
        decode(bytes(data), "s")


@pytest.mark.parametrize("length", [0, 5, 9, 20])
def test_a_short_snapshot_is_refused(length: int) -> None:
    data = encode(state_after(*FIVE).entries.values())
    with pytest.raises(CorruptionError):
        decode(data[:length], "s")
