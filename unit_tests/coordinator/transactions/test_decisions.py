"""Tests of the decisions of the transaction coordinator, as tables."""

from __future__ import annotations

import itertools
import random

import pytest

from pybroker.coordinator.transactions import decisions
from pybroker.coordinator.transactions.decisions import Begin, Fence, Init
from pybroker.coordinator.transactions.states import (
    ANSWERS,
    IDLE,
    LEGAL_MOVES,
    STORED,
    IllegalMove,
    TransactionRequest,
    TransactionState,
)
from pybroker.coordinator.transactions.transaction import (
    EPOCH_MAX,
    ProducerIdAndEpoch,
    Transaction,
)
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition

NOW = 1_000_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = ProducerIdAndEpoch(7, 3)
States = TransactionState


def at(state: States, producer: ProducerIdAndEpoch = ME) -> Transaction:
    has_partitions = state not in IDLE
    return Transaction(
        "id",
        producer,
        5_000,
        state,
        frozenset({P0} if has_partitions else ()),
        NOW - 100,
        -1 if state is States.EMPTY else NOW - 200,
    )


def code_of(decided: object) -> int:
    if isinstance(decided, ErrorCode):
        return decided
    return ErrorCode.CONCURRENT_TRANSACTIONS if isinstance(decided, Fence) else ErrorCode.NONE


def answered(state: States, asked: TransactionRequest) -> int:
    transaction = at(state)
    if asked is TransactionRequest.INIT:
        return code_of(decisions.init_producer_id("id", transaction, None, Init(5_000), None, NOW))
    if asked is TransactionRequest.ADD:
        return code_of(decisions.add_partitions(transaction, ME, frozenset({P1}), NOW))
    if asked is TransactionRequest.VERIFY:
        return decisions.verify(transaction, ME, [P0])[P0]
    is_commit = asked is TransactionRequest.COMMIT
    return code_of(decisions.end(transaction, ME, NOW, is_commit=is_commit))


@pytest.mark.parametrize("state", STORED.values(), ids=lambda state: state.value)
@pytest.mark.parametrize("asked", TransactionRequest, ids=lambda asked: asked.name)
def test_every_state_answers_as_the_table_says(state: States, asked: TransactionRequest) -> None:
    number = ANSWERS[state][asked].split(":")[0].split()[0]
    assert answered(state, asked) == int(number)


OTHERS = [
    (ProducerIdAndEpoch(8, 3), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (ProducerIdAndEpoch(7, 2), ErrorCode.PRODUCER_FENCED),
    (ProducerIdAndEpoch(7, 4), ErrorCode.PRODUCER_FENCED),
]


@pytest.mark.parametrize(("producer", "code"), OTHERS)
@pytest.mark.parametrize("state", STORED.values(), ids=lambda state: state.value)
def test_request_of_another_producer_is_refused_in_every_state(
    state: States, producer: ProducerIdAndEpoch, code: ErrorCode
) -> None:
    known = at(state)
    assert decisions.add_partitions(known, producer, frozenset({P0}), NOW) is code
    assert decisions.end(known, producer, NOW, is_commit=True) is code
    assert decisions.end(known, producer, NOW, is_commit=False) is code
    assert decisions.verify(known, producer, [P0, P1]) == {P0: code, P1: code}


def test_unknown_transactional_id_is_not_mapped() -> None:
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert decisions.add_partitions(None, ME, frozenset({P0}), NOW) is code
    assert decisions.end(None, ME, NOW, is_commit=True) is code
    assert decisions.verify(None, ME, [P0]) == {P0: code}


def test_first_producer_gets_a_new_id_and_epoch_0() -> None:
    assert decisions.needs_producer_id(None, Init(5_000))
    decided = decisions.init_producer_id("id", None, None, Init(5_000), 70, NOW)
    assert isinstance(decided, Begin)
    assert decided.transaction.producer == (70, 0)
    assert decided.transaction.state is States.EMPTY
    assert decided.transaction.timeout_ms == 5_000


BEFORE = ProducerIdAndEpoch(7, 2)
KIP_360 = [
    # (expected, previous, the identity that the producer gets, or the error)
    (None, None, (7, 4)),
    (None, BEFORE, (7, 4)),
    (ME, None, (7, 4)),
    (ME, BEFORE, (7, 4)),
    (BEFORE, BEFORE, (7, 3)),
    (BEFORE, None, ErrorCode.PRODUCER_FENCED),
    (ProducerIdAndEpoch(7, 4), BEFORE, ErrorCode.PRODUCER_FENCED),
    (ProducerIdAndEpoch(8, 3), BEFORE, ErrorCode.PRODUCER_FENCED),
]


@pytest.mark.parametrize("state", [state for state in States if state in IDLE])
@pytest.mark.parametrize(("expected", "previous", "outcome"), KIP_360)
def test_epoch_is_raised_only_for_the_current_producer(
    state: States,
    expected: ProducerIdAndEpoch | None,
    previous: ProducerIdAndEpoch | None,
    outcome: object,
) -> None:
    call = Init(9_000, expected)
    decided = decisions.init_producer_id("id", at(state), previous, call, None, NOW)
    if isinstance(outcome, ErrorCode):
        assert decided is outcome
        return
    assert isinstance(decided, Begin)
    assert decided.transaction.producer == outcome
    assert decided.transaction.timeout_ms == 9_000
    assert decided.transaction.start_ms == -1
    is_repeated = expected is not None and expected == previous
    assert decided.previous == (previous if is_repeated else expected)


OPEN = [States.ONGOING, States.PREPARE_COMMIT, States.PREPARE_ABORT]


@pytest.mark.parametrize("epoch", [1, 2, 4, -2, 2**15 - 1])
@pytest.mark.parametrize("state", OPEN, ids=lambda state: state.value)
def test_any_epoch_of_the_producer_id_waits_for_the_end_of_the_transaction(
    state: States, epoch: int
) -> None:
    call = Init(5_000, ProducerIdAndEpoch(7, epoch))
    decided = decisions.init_producer_id("id", at(state), BEFORE, call, None, NOW)
    assert code_of(decided) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert isinstance(decided, Fence) == (state is States.ONGOING)


@pytest.mark.parametrize("state", OPEN, ids=lambda state: state.value)
def test_foreign_producer_id_does_not_abort_the_transaction(state: States) -> None:
    call = Init(5_000, ProducerIdAndEpoch(8, 3))
    decided = decisions.init_producer_id("id", at(state), BEFORE, call, None, NOW)
    assert decided is ErrorCode.PRODUCER_FENCED


def test_old_epoch_aborts_the_open_transaction_and_is_then_refused() -> None:
    old = Init(5_000, ProducerIdAndEpoch(7, 1))
    decided = decisions.init_producer_id("id", at(States.ONGOING), BEFORE, old, None, NOW)
    assert isinstance(decided, Fence)
    complete = decided.transaction.completed(NOW + 1)
    again = decisions.init_producer_id("id", complete, None, old, None, NOW + 2)
    assert again is ErrorCode.PRODUCER_FENCED


def test_open_transaction_is_aborted_with_an_epoch_that_no_producer_has() -> None:
    decided = decisions.init_producer_id("id", at(States.ONGOING), None, Init(9_000), None, NOW)
    assert isinstance(decided, Fence)
    fenced = decided.transaction
    assert fenced.state is States.PREPARE_ABORT
    assert fenced.producer == (7, 4)
    assert fenced.partitions == {P0}
    assert fenced.timeout_ms == 5_000
    complete = fenced.completed(NOW + 1)
    after = decisions.init_producer_id("id", complete, None, Init(9_000), None, NOW + 2)
    assert isinstance(after, Begin)
    assert after.transaction.producer == (7, 5)


def test_exhausted_epoch_takes_a_new_producer_id() -> None:
    last = at(States.COMPLETE_COMMIT, ProducerIdAndEpoch(7, EPOCH_MAX))
    for expected in (None, last.producer):
        call = Init(5_000, expected)
        assert decisions.needs_producer_id(last, call)
        decided = decisions.init_producer_id("id", last, None, call, 90, NOW)
        assert isinstance(decided, Begin)
        assert decided.transaction.producer == (90, 0)
        assert decided.previous == expected
        begun = decided.transaction
    repeated = decisions.init_producer_id(
        "id", begun, last.producer, Init(5_000, last.producer), None, NOW
    )
    assert isinstance(repeated, Begin)
    assert repeated.transaction.producer == (90, 0)


def test_open_transaction_of_the_last_epoch_can_still_be_fenced() -> None:
    last = at(States.ONGOING, ProducerIdAndEpoch(7, EPOCH_MAX))
    decided = decisions.init_producer_id("id", last, None, Init(5_000), None, NOW)
    assert isinstance(decided, Fence)
    assert decided.transaction.producer.epoch == 2**15 - 1
    complete = decided.transaction.completed(NOW)
    assert decisions.needs_producer_id(complete, Init(5_000))


def test_transaction_begins_with_its_first_partition() -> None:
    begun = decisions.add_partitions(at(States.COMPLETE_ABORT), ME, frozenset({P0}), NOW)
    assert isinstance(begun, Transaction)
    assert (begun.start_ms, begun.updated_ms) == (NOW, NOW)
    more = decisions.add_partitions(begun, ME, frozenset({P1}), NOW + 5)
    assert isinstance(more, Transaction)
    assert (more.start_ms, more.updated_ms) == (NOW, NOW + 5)
    assert more.partitions == {P0, P1}
    assert decisions.add_partitions(more, ME, frozenset({P1}), NOW + 6) is ErrorCode.NONE


def test_only_partitions_of_the_open_transaction_are_verified() -> None:
    found = decisions.verify(at(States.ONGOING), ME, [P0, P1])
    assert found == {P0: ErrorCode.NONE, P1: ErrorCode.INVALID_TXN_STATE}


def test_transaction_times_out_at_its_deadline() -> None:
    ongoing = at(States.ONGOING)
    assert decisions.time_out(ongoing, ongoing.deadline_ms - 1) is None
    aborted = decisions.time_out(ongoing, ongoing.deadline_ms)
    assert aborted is not None
    assert (aborted.state, aborted.producer) == (States.PREPARE_ABORT, (7, 4))
    for state in set(STORED.values()) - {States.ONGOING}:
        assert decisions.time_out(at(state), NOW * 2) is None


def test_only_ids_without_a_transaction_expire() -> None:
    for state in STORED.values():
        known = at(state)
        assert decisions.is_expired(known, known.updated_ms + 50, 50) == (state in IDLE)
        assert not decisions.is_expired(known, known.updated_ms + 49, 50)


def test_moves_outside_the_table_raise() -> None:
    for source, target in itertools.product(States, States):
        if source in LEGAL_MOVES[target]:
            assert at(source).moved_to(target, NOW).state is target
        else:
            with pytest.raises(IllegalMove):
                at(source).moved_to(target, NOW)


def test_random_requests_never_lower_the_epoch_of_a_producer_id() -> None:
    rng = random.Random(21)
    known: Transaction | None = None
    previous: ProducerIdAndEpoch | None = None
    seen: dict[int, int] = {}
    moves = 0
    for now in range(2_000):
        producer = ME if known is None else known.producer
        if rng.random() < 0.2:
            producer = ProducerIdAndEpoch(producer.producer_id, rng.randrange(5))
        decided: object
        if rng.random() < 0.3 or known is None:
            call = Init(5_000, rng.choice([None, producer]))
            decided = decisions.init_producer_id("id", known, previous, call, 7 + now, now)
        elif rng.random() < 0.5:
            some = frozenset({TopicPartition("t", rng.randrange(3))})
            decided = decisions.add_partitions(known, producer, some, now)
        elif known.state in (States.PREPARE_COMMIT, States.PREPARE_ABORT):
            decided = known.completed(now)
        else:
            decided = decisions.end(known, producer, now, is_commit=rng.random() < 0.5)
        if isinstance(decided, Begin):
            known, previous = decided.transaction, decided.previous
        elif isinstance(decided, Fence):
            known, previous = decided.transaction, None
        elif isinstance(decided, Transaction):
            known = decided
        else:
            continue
        moves += 1
        assert known is not None
        assert known.producer.epoch >= seen.get(known.producer.producer_id, 0)
        seen[known.producer.producer_id] = known.producer.epoch
    assert moves > 500
