"""Tests of the requests of transactional producers to their coordinator: late,
foreign, wrong and out of order."""

from __future__ import annotations

from typing import Final

import pytest

from integration_tests.transaction_requests import (
    FOREIGN,
    Producer,
    aborted,
    add,
    add_offsets,
    add_once,
    end,
    find,
    init,
    init_code,
    started,
    state_of,
    wait_for_end,
    write,
)
from integration_tests.wire_client import (
    Connection,
    create_topic,
    log_end,
)
from pybroker.errors import ErrorCode
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from unit_tests.patience import wait_until

NONE: Final = ErrorCode.NONE
FENCED: Final = ErrorCode.PRODUCER_FENCED
NOT_MAPPED: Final = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG_STATE: Final = ErrorCode.INVALID_TXN_STATE
TIMEOUT_MAX_MS: Final = 900_000
"""The default of transaction.max.timeout.ms."""


def codes_of_coordinator(
    connection: Connection, producer: Producer, topic: str, *, version: int = 3
) -> set[int]:
    """Return the codes of all requests that continue or end a transaction."""
    return {
        add(connection, producer, topic, version=version),
        add_offsets(connection, producer, topic, version=version),
        end(connection, producer, commit=True, version=version),
        end(connection, producer, commit=False, version=version),
    }


# producers


@pytest.mark.parametrize("version", range(4))
def test_unknown_transactional_id_gets_error_49(
    connection: Connection, topic: str, group: str, version: int
) -> None:
    create_topic(connection, topic)
    find(connection, topic)
    unknown = Producer(topic, 5, 0)
    assert codes_of_coordinator(connection, unknown, topic, version=version) == {NOT_MAPPED}
    assert state_of(connection, unknown) == ""


@pytest.mark.parametrize("version", range(4))
def test_foreign_producer_id_gets_error_49(
    connection: Connection, topic: str, group: str, producer: Producer, version: int
) -> None:
    for producer_id in (FOREIGN, -1, 2**63 - 1):
        foreign = producer._replace(producer_id=producer_id)
        assert codes_of_coordinator(connection, foreign, topic, version=version) == {NOT_MAPPED}
    assert add(connection, producer, topic) == NONE
    assert end(connection, producer, commit=True) == NONE


@pytest.mark.parametrize("version", range(4))
def test_other_epochs_are_fenced(
    connection: Connection, topic: str, group: str, producer: Producer, version: int
) -> None:
    """Versions 0 and 1 have INVALID_PRODUCER_EPOCH (47) in place of PRODUCER_FENCED (90)."""
    present = started(connection, topic)
    assert present == producer.at(1)
    code = FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    for epoch in (0, 2, -1, 2**15 - 1):
        fenced = producer.at(epoch)
        assert codes_of_coordinator(connection, fenced, topic, version=version) == {code}
    assert add(connection, present, topic) == NONE
    assert codes_of_coordinator(connection, producer, topic, version=version) == {code}
    assert end(connection, present, commit=True) == NONE


def test_empty_transactional_id_gets_error_42(
    connection: Connection, topic: str, group: str
) -> None:
    create_topic(connection, topic)
    find(connection, "")
    nameless = Producer("", 5, 0)
    codes = codes_of_coordinator(connection, nameless, topic)
    assert codes == {ErrorCode.INVALID_REQUEST}


def test_transactional_id_of_30000_bytes_has_transactions(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    name = topic + "ü" * ((30_000 - len(topic)) // 2)
    for epoch in range(2):
        producer = started(connection, name)
        assert producer.epoch == epoch
        assert add(connection, producer, topic) == NONE
        assert write(connection, producer, topic, b"value") == NONE
        assert end(connection, producer, commit=True) == NONE
        wait_for_end(connection, topic, 2 * epoch + 2)


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), TIMEOUT_MAX_MS + 1, 2**31 - 1])
def test_invalid_transaction_timeout_gets_error_50(
    connection: Connection, topic: str, timeout_ms: int
) -> None:
    find(connection, topic)
    code = init_code(connection, topic, timeout_ms=timeout_ms)
    assert code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert state_of(connection, Producer(topic, 0, 0)) == ""
    assert init_code(connection, topic, timeout_ms=TIMEOUT_MAX_MS) == NONE


# InitProducerId with a producer id and epoch (KIP-360)


def test_producer_gets_the_next_epoch_and_a_repetition_the_same(
    connection: Connection, topic: str
) -> None:
    first = started(connection, topic)
    for _ in range(3):
        assert started(connection, topic, expected=first[1:]) == first.at(1)
    assert started(connection, topic, expected=first.at(1)[1:]) == first.at(2)
    assert init_code(connection, topic, expected=first[1:]) == FENCED
    assert started(connection, topic) == first.at(3)
    assert init_code(connection, topic, expected=first.at(2)[1:]) == FENCED


def test_init_with_a_foreign_producer_id_is_fenced(connection: Connection, topic: str) -> None:
    present = started(connection, topic)
    for expected in ((FOREIGN, 0), (FOREIGN, 2**15 - 2), (present.producer_id, 7)):
        assert init_code(connection, topic, expected=expected) == FENCED
        code = ErrorCode.INVALID_PRODUCER_EPOCH
        assert init_code(connection, topic, expected=expected, version=3) == code
    assert started(connection, topic) == present.at(1)


@pytest.mark.parametrize("expected", [(5, -1), (-1, 5)])
def test_init_with_half_an_identity_gets_error_42(
    connection: Connection, topic: str, expected: tuple[int, int]
) -> None:
    for name in (topic, None):
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=1000,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        for version in (3, 4):
            answer = connection.ask(version, request, InitProducerIdResponse)
            found = (answer.error_code, answer.producer_id, answer.producer_epoch)
            assert found == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_unknown_transactional_id_ignores_the_expected_identity(
    connection: Connection, topic: str
) -> None:
    found = started(connection, topic, expected=(FOREIGN, 7))
    assert found.epoch == 0 and found.producer_id != FOREIGN


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_init_with_any_epoch_aborts_the_open_transaction(
    connection: Connection, topic: str, producer: Producer, epoch: int
) -> None:
    """The present epoch is 1. Kafka compares epochs only when no transaction is open."""
    present = started(connection, topic)
    assert add(connection, present, topic) == NONE
    assert write(connection, present, topic, b"value") == NONE
    expected = (producer.producer_id, epoch)
    assert init(connection, topic, expected=expected).error_code == (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    assert end(connection, present, commit=True) == FENCED
    wait_for_end(connection, topic, 2)
    assert aborted(connection, topic, 0) == [(producer.producer_id, 0)]
    wait_until(lambda: state_of(connection, present) == "CompleteAbort", what="it is aborted")
    code = init_code(connection, topic, expected=expected)
    assert code == FENCED
    assert started(connection, topic) == present.at(3)


def test_init_with_a_foreign_producer_id_leaves_the_open_transaction(
    connection: Connection, topic: str, producer: Producer
) -> None:
    assert add(connection, producer, topic) == NONE
    assert init_code(connection, topic, expected=(FOREIGN, 0)) == FENCED
    assert state_of(connection, producer) == "Ongoing"
    assert end(connection, producer, commit=True) == NONE


# states


def test_end_of_a_transaction_that_has_not_begun_gets_error_48(
    connection: Connection, producer: Producer
) -> None:
    for commit in (True, False):
        assert end(connection, producer, commit=commit) == WRONG_STATE
    assert state_of(connection, producer) == "Empty"


@pytest.mark.parametrize("commit", [True, False])
def test_end_is_repeatable_but_its_outcome_is_final(
    connection: Connection, topic: str, producer: Producer, commit: bool
) -> None:
    assert add(connection, producer, topic) == NONE
    for _ in range(2):
        assert end(connection, producer, commit=commit) == NONE
        assert end(connection, producer, commit=not commit) == WRONG_STATE
    state = "CompleteCommit" if commit else "CompleteAbort"
    wait_until(lambda: state_of(connection, producer) == state, what="the markers are written")
    assert end(connection, producer, commit=commit) == NONE
    assert end(connection, producer, commit=not commit) == WRONG_STATE
    assert log_end(connection, topic) == 1


# partitions


def test_partitions_are_added_all_or_none(
    connection: Connection, topic: str, producer: Producer
) -> None:
    """An internal topic gets 29, an unknown partition 3, and all others 55."""
    none, missing = f"{topic}-missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    denied, not_tried = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
    wanted = {topic: [0, 3, 2, -1], none: [0], "__transaction_state": [0], "a b/c": [1]}
    for version in range(4):
        assert add_once(connection, producer, wanted, version=version) == {
            (topic, 0): not_tried,
            (topic, 3): missing,
            (topic, 2): not_tried,
            (topic, -1): missing,
            (none, 0): missing,
            ("__transaction_state", 0): denied,
            ("a b/c", 1): missing,
        }
    assert state_of(connection, producer) == "Empty"
    assert end(connection, producer, commit=True) == WRONG_STATE
    assert write(connection, producer, topic, b"value") == WRONG_STATE


def test_unknown_partitions_are_reported_before_the_producer(
    connection: Connection, topic: str, producer: Producer
) -> None:
    wanted = {topic: [0, 9]}
    codes = add_once(connection, producer.at(9), wanted)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {(topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED, (topic, 9): missing}


def test_partitions_may_be_added_again(
    connection: Connection, topic: str, producer: Producer
) -> None:
    for partitions in ((0,), (0,), (0, 1), (2, 1), (0, 1, 2)):
        assert add(connection, producer, topic, *partitions) == NONE
    for number in range(3):
        assert write(connection, producer, topic, b"value", partition=number) == NONE
    assert end(connection, producer, commit=True) == NONE


def test_a_transaction_without_partitions_can_be_committed(
    connection: Connection, producer: Producer
) -> None:
    assert add_once(connection, producer, {}) == {}
    assert state_of(connection, producer) == "Ongoing"
    assert end(connection, producer, commit=True) == NONE
    wait_until(lambda: state_of(connection, producer) == "CompleteCommit", what="it is complete")
