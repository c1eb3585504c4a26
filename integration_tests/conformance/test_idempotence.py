"""Tests of InitProducerId and of the sequence numbers of idempotent producers."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from integration_tests.conftest import BrokerMaker
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    log_end,
    new_producer,
    produce,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from unit_tests.patience import wait_until

LARGEST_SEQUENCE: Final = 2**31 - 1
TRY_AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class IdempotentProducer:
    """A producer that sends batches of two records with a producer id to one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self.id, self.epoch = new_producer(connection)

    def send(
        self, sequence: int, *, epoch: int | None = None, connection: Connection | None = None
    ) -> tuple[int, int]:
        """Send a batch. Return error code and base offset."""
        identity = (self.id, self.epoch if epoch is None else epoch)
        batch = batch_of(b"a", b"b", producer=identity, sequence=sequence)
        result = produce(connection or self._connection, self._topic, batch)
        return result.error_code, result.base_offset


@pytest.fixture
def producer(connection: Connection, topic: str) -> IdempotentProducer:
    create_topic(connection, topic)
    return IdempotentProducer(connection, topic)


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**31 - 1])
def test_every_producer_gets_an_id_of_its_own_whatever_its_timeout(
    connection: Connection, timeout_ms: int
) -> None:
    given = [
        new_producer(connection, version=version, timeout_ms=timeout_ms)
        for version in range(5)
        for _ in range(3)
    ]
    ids = [producer_id for producer_id, _ in given]
    assert len(set(ids)) == 15 and min(ids) >= 0
    assert {epoch for _, epoch in given} == {0}


def test_empty_transactional_id_gets_error_42(connection: Connection) -> None:
    request = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)
    for version in range(5):
        answer = connection.ask(version, request, InitProducerIdResponse)
        found = (answer.error_code, answer.producer_id, answer.producer_epoch)
        assert found == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch(
    connection: Connection,
) -> None:
    find = FindCoordinatorRequest(key="tx-epochs", key_type=1)
    request = InitProducerIdRequest(transactional_id="tx-epochs", transaction_timeout_ms=1000)
    given: list[tuple[int, int]] = []

    def is_given(version: int) -> bool:
        answer = connection.ask(version, request, InitProducerIdResponse)
        if answer.error_code == 0:
            given.append((answer.producer_id, answer.producer_epoch))
        else:
            assert answer.error_code in TRY_AGAIN
            connection.ask(3, find, FindCoordinatorResponse)
        return answer.error_code == 0

    for version in range(5):
        wait_until(partial(is_given, version), what="a producer id")
    assert len({producer_id for producer_id, _ in given}) == 1
    assert [epoch for _, epoch in given] == [*range(given[0][1], given[0][1] + 5)]


def test_duplicates_of_the_last_five_batches_get_their_first_offset(
    connection: Connection, producer: IdempotentProducer, topic: str
) -> None:
    for sequence in range(0, 14, 2):
        assert producer.send(sequence) == (0, sequence)
    for sequence in (12, 10, 8, 6, 4, 12):
        assert producer.send(sequence) == (0, sequence)
    assert log_end(connection, topic) == 14
    assert producer.send(14) == (0, 14)


def test_a_duplicate_that_is_too_old_gets_error_45(
    connection: Connection, producer: IdempotentProducer, topic: str
) -> None:
    for sequence in range(0, 14, 2):
        producer.send(sequence)
    assert producer.send(0) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert log_end(connection, topic) == 14


def test_a_gap_gets_error_45(
    connection: Connection, producer: IdempotentProducer, topic: str
) -> None:
    producer.send(0)
    assert producer.send(4) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(2) == (0, 2)
    assert log_end(connection, topic) == 4


def test_an_old_epoch_gets_error_47(producer: IdempotentProducer) -> None:
    assert producer.send(0, epoch=3) == (0, 0)
    assert producer.send(2, epoch=2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert producer.send(2, epoch=3) == (0, 2)


def test_a_new_epoch_begins_with_sequence_0(producer: IdempotentProducer) -> None:
    assert producer.send(0) == (0, 0)
    assert producer.send(2, epoch=1) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(0, epoch=1) == (0, 2)


def test_an_unknown_producer_may_begin_anywhere(producer: IdempotentProducer) -> None:
    assert producer.send(1000) == (0, 0)
    assert producer.send(1002) == (0, 2)


def test_sequences_are_counted_per_producer_and_partition(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic, partitions=2)
    one, other = new_producer(connection), new_producer(connection)
    for producer, partition, offset in ((one, 0, 0), (other, 0, 1), (one, 1, 0)):
        batch = batch_of(b"a", producer=producer, sequence=0)
        result = produce(connection, topic, batch, partition=partition)
        assert (result.error_code, result.base_offset) == (0, offset)


def test_sequences_continue_with_0_after_the_maximum(producer: IdempotentProducer) -> None:
    assert producer.send(LARGEST_SEQUENCE - 1) == (0, 0)
    assert producer.send(0) == (0, 2)
    assert producer.send(LARGEST_SEQUENCE - 1) == (0, 0)


def test_a_batch_across_the_maximum_sequence_is_followed_by_1(producer: IdempotentProducer) -> None:
    assert producer.send(LARGEST_SEQUENCE) == (0, 0)
    assert producer.send(0) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(1) == (0, 2)


@pytest.mark.parametrize("how", ["stop", pytest.param("kill9", marks=pytest.mark.process)])
def test_producer_state_survives_a_restart(new_broker: BrokerMaker, topic: str, how: str) -> None:
    broker = new_broker()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, topic)
        producer = IdempotentProducer(connection, topic)
        for sequence in (0, 2, 4):
            producer.send(sequence)
    if how == "stop":
        broker.stop()
    else:
        broker.kill9()
    broker.start()
    with Connection(broker.bootstrap) as again:
        wait_for_leader(again, topic)
        assert producer.send(4, connection=again) == (0, 4)
        gap = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert producer.send(8, connection=again) == gap
        assert producer.send(6, connection=again) == (0, 6)
        assert new_producer(again)[0] != producer.id
