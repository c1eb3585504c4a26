"""Tests of the decisions of the producer state, as tables."""

from __future__ import annotations

import struct
from collections import deque

import pytest

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.records.batch import SEQUENCE_MAX, read_header
from pybroker.records.control import ControlType, EndTransaction
from pybroker.storage.producer_snapshot import decode, decode_undecided, encode
from pybroker.storage.producer_state import (
    EXEMPT,
    VERIFICATIONS_MAX,
    CompletedTransaction,
    ProducerState,
    Verification,
)
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


def test_snapshot_restores_the_undecided_transactions() -> None:
    state = state_after(*FIVE)
    state.apply(header(9, 10, transactional=True), 20, FIRST_TIMESTAMP)
    state.apply(header(3, 0, transactional=True), 21, FIRST_TIMESTAMP)
    state.apply(read_header(marker(9, commit=False)), 22, 0, EndTransaction(ControlType.ABORT, 1))
    data = encode(state.entries.values(), state.undecided)
    restored = ProducerState.restored(decode(data, "s"), decode_undecided(data))
    assert restored.entries == state.entries
    assert restored.undecided == state.undecided == deque([CompletedTransaction(9, 20, 22, True)])
    assert restored.first_unstable == 20
    assert decode_undecided(encode(state.entries.values())) == []
    # The entries are where Apache Kafka reads them.
    assert data[6:10] == struct.pack(">i", 2)


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


# the guard of a transaction's first append

NOT_IN_TRANSACTION = ErrorCode.INVALID_TXN_STATE


def appended(
    state: ProducerState, guard: Verification | None, *, sequence: int = 0, epoch: int = 0
) -> ErrorCode:
    """Check a transactional batch of producer 9, and apply it at offset 50 if it is accepted."""
    one = header(9, sequence, epoch=epoch, transactional=True)
    try:
        duplicate = state.check(one, None, guard)
    except BrokerError as error:
        return error.code
    if duplicate is None:
        state.apply(one, 50, 0)
    return OK


def guard_of(
    state: ProducerState, *, sequence: int = 0, epoch: int = 0, now_ms: int = 0
) -> Verification | None:
    return state.verification(9, epoch, sequence, now_ms)


def test_first_batch_of_a_transaction_needs_the_current_guard() -> None:
    for state in (ProducerState(), state_after((0, 5, 1))):
        first = 6 if state.entries else 0
        assert appended(state, None, sequence=first) is NOT_IN_TRANSACTION
        guard = guard_of(state, sequence=first)
        assert appended(state, Verification(0, 0, first), sequence=first) is NOT_IN_TRANSACTION
        assert appended(state, guard, sequence=first) is OK
        assert state.verifications == {}
        # The open transaction was confirmed.
        assert guard_of(state) is None
        assert appended(state, None, sequence=first + 1) is OK


def test_batches_without_verification_need_no_guard() -> None:
    assert appended(ProducerState(), EXEMPT, sequence=3) is OK


@pytest.mark.parametrize("is_commit", [True, False])
def test_marker_invalidates_the_guard_of_an_earlier_verification(is_commit: bool) -> None:
    state = ProducerState()
    guard = guard_of(state)
    end = EndTransaction(ControlType(is_commit), 3)
    state.apply(read_header(marker(9, commit=is_commit)), 0, 0, end)
    assert appended(state, guard) is NOT_IN_TRANSACTION
    again = guard_of(state)
    assert again is not guard
    assert appended(state, again) is OK


def test_transaction_that_ends_during_the_retry_of_a_batch_is_not_begun_again() -> None:
    state = ProducerState()
    assert appended(state, guard_of(state)) is OK
    guard = guard_of(state)
    state.apply(read_header(marker(9, commit=False)), 60, 0, COMMIT)
    assert guard is None
    assert appended(state, guard, sequence=1) is NOT_IN_TRANSACTION


def test_retry_of_an_appended_batch_needs_no_guard() -> None:
    state = ProducerState()
    assert appended(state, guard_of(state)) is OK
    state.apply(read_header(marker(9, commit=True)), 60, 0, COMMIT)
    assert appended(state, None) is OK
    assert state.open_transactions == {}


@pytest.mark.parametrize(
    ("asked", "appended_first", "expected"),
    [
        ([(0, 0), (0, 5)], (0, 5), GAP),
        ([(0, 0), (0, 5)], (0, 0), OK),
        ([(0, 5), (0, 0)], (0, 5), GAP),
        ([(0, 5), (1, 0)], (1, 0), OK),
        ([(0, 0), (1, 3)], (1, 3), OK),
        ([(1, 0), (0, 7)], (1, 0), OK),
    ],
)
def test_batch_with_the_lowest_verified_sequence_comes_first(
    asked: list[tuple[int, int]], appended_first: tuple[int, int], expected: ErrorCode
) -> None:
    """`asked` are the (epoch, first sequence) of the batches for which a verification was
    requested, `appended_first` is that of the batch which is appended first."""
    state = ProducerState()
    guards = {guard_of(state, epoch=epoch, sequence=sequence) for epoch, sequence in asked}
    assert len(guards) == 1
    epoch, sequence = appended_first
    assert appended(state, guards.pop(), epoch=epoch, sequence=sequence) is expected


@pytest.mark.parametrize(("epoch", "stays"), [(0, True), (1, False), (2, False)])
def test_denied_guard_is_removed_unless_it_belongs_to_a_newer_epoch(
    epoch: int, stays: bool
) -> None:
    state = ProducerState()
    guard_of(state, epoch=1)
    state.refuse(9, epoch)
    assert (9 in state.verifications) is stays


def test_guards_are_limited_and_expire() -> None:
    state = ProducerState()
    for number in range(VERIFICATIONS_MAX + 3):
        state.verification(number, 0, 0, number)
    assert len(state.verifications) == VERIFICATIONS_MAX
    assert min(state.verifications) == 3
    state.expire(VERIFICATIONS_MAX + 10, 10)
    assert min(state.verifications) == VERIFICATIONS_MAX + 1


def test_batches_of_the_group_coordinator_have_no_sequences() -> None:
    state = state_after((2, 0, 4))
    one = header(9, -1, epoch=2, transactional=True)
    assert state.check(one) is None
    state.apply(one, 50, 0)
    assert state.check(one) is None
    assert answer(state, 2, 4, 1) is ErrorCode.INVALID_TXN_STATE
    with pytest.raises(BrokerError) as caught:
        state.check(header(9, -1, epoch=1, transactional=True))
    assert caught.value.code is FENCED


# the last stable offset


@pytest.mark.parametrize(
    ("steps", "high_watermark", "expected"),
    [
        ("", 9, 9),
        ("a", 9, 0),
        ("a", 0, 0),
        ("aA", 1, 0),
        ("aA", 2, 2),
        ("ab", 2, 0),
        ("abA", 2, 0),
        ("abA", 3, 1),
        ("abB", 3, 0),
        ("abBA", 3, 0),
        ("abBA", 4, 4),
        ("abABc", 3, 1),
        ("abABc", 4, 4),
        ("abABc", 5, 4),
        ("abcBA", 5, 2),
        ("aAaA", 2, 2),
        ("aAaA", 3, 2),
        ("aAaA", 4, 4),
        ("aa", 2, 0),
    ],
)
def test_last_stable_offset(steps: str, high_watermark: int, expected: int) -> None:
    """A small letter is a batch of a transaction, the capital letter is its marker. Each takes one
    offset."""
    state = ProducerState()
    sequences = dict.fromkeys("abc", 0)
    for offset, step in enumerate(steps):
        producer = ord(step.lower())
        if step.isupper():
            state.apply(read_header(marker(producer, commit=True)), offset, 0, COMMIT)
        else:
            sequence, sequences[step] = sequences[step], sequences[step] + 1
            state.apply(header(producer, sequence, transactional=True), offset, 0)
    state.decide(high_watermark)
    assert state.last_stable_offset(high_watermark) == expected
    restored = ProducerState.restored(state.entries.values(), state.undecided)
    assert restored.last_stable_offset(high_watermark) == expected
    assert list(restored.open_transactions.items()) == list(state.open_transactions.items())


def test_decide_says_whether_transactions_were_decided() -> None:
    state = ProducerState()
    assert not state.decide(5)
    state.apply(header(9, 0, transactional=True), 5, 0)
    assert not state.decide(6)
    state.apply(read_header(marker(9, commit=True)), 6, 0, COMMIT)
    assert not state.decide(6)
    assert state.decide(7)
    assert not state.decide(8)


def test_time_for_which_the_last_stable_offset_stands_still() -> None:
    state = ProducerState()
    assert state.stood_still_ms(1000) == 0
    state.apply(header(1, 0, transactional=True), 0, 1000)
    state.apply(header(2, 0, transactional=True), 1, 2000)
    state.apply(header(1, 1, transactional=True), 2, 3000)
    assert state.stood_still_ms(9000) == 8000
    state.apply(read_header(marker(1, commit=True)), 3, 5000, COMMIT)
    assert state.stood_still_ms(9000) == 8000  # the marker is not committed yet
    state.decide(4)
    assert (state.first_unstable, state.stood_still_ms(9000)) == (1, 4000)
    state.apply(read_header(marker(2, commit=True)), 4, 6000, COMMIT)
    state.decide(5)
    assert state.stood_still_ms(9000) == 0
