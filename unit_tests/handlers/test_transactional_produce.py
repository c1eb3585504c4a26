"""Tests of Produce in transactions: verification by the coordinator, and the codes for
producers."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import BrokerError, CloseConnection, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Producer
from pybroker.records.compression import Codec
from pybroker.storage.producer_state import EXEMPT
from unit_tests.handlers.bench import Bench, batch, code, the_only, values_of
from unit_tests.handlers.transactions import (
    FOLLOWER,
    PRODUCER,
    TRANSACTIONAL_ID,
    FakeCoordinator,
    coordinator_of,
    end,
    of,
    produce_in,
    put,
    share,
)
from unit_tests.idle_loop import idle

T0 = TopicPartition("t", 0)
NONE = ErrorCode.NONE
NOT_IN_TRANSACTION = ErrorCode.INVALID_TXN_STATE


@pytest.fixture(params=[False, True], ids=["with a wait", "at once"])
async def coordinator(bench: Bench, request: pytest.FixtureRequest) -> FakeCoordinator:
    """The coordinator on another broker, or on this broker."""
    await bench.create("t", 3)
    fake = coordinator_of(bench)
    fake.is_here = request.param
    return fake


async def read(bench: Bench) -> list[bytes | None]:
    """Return the values that a read_committed consumer of t-0 reads, with markers and aborted
    records, which clients skip."""
    return values_of(await bench.fetch("t", 0, read_committed=True))


async def test_coordinator_is_asked_once_for_each_transaction_and_partition(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    for sequence in range(3):
        assert await put(bench, sequence) is NONE
    assert coordinator.asked == [(TRANSACTIONAL_ID, PRODUCER, 0, [T0])]
    assert await end(bench) is NONE
    assert await put(bench, 3) is NONE
    assert len(coordinator.asked) == 2
    assert await end(bench, commit=False) is NONE
    found = await bench.fetch("t", 0, read_committed=True)
    assert len(values_of(found)) == 6
    assert found.last_stable_offset == found.high_watermark == 6
    assert found.aborted_transactions is not None
    aborted = the_only(found.aborted_transactions)
    assert (aborted.producer_id, aborted.first_offset) == (PRODUCER, 4)


async def test_partitions_of_one_request_are_verified_together(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    one = batch(producer=(PRODUCER, 0, 0), transactional=True)
    assert [code(row) for row in await produce_in(bench, one, one, batch(b"plain"))] == [NONE] * 3
    assert coordinator.asked == [
        (TRANSACTIONAL_ID, PRODUCER, 0, [T0, TopicPartition("t", 1)]),
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.NOT_ENOUGH_REPLICAS),
        (BrokerError(ErrorCode.NETWORK_EXCEPTION), ErrorCode.NOT_ENOUGH_REPLICAS),
        (BrokerError(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_ENOUGH_REPLICAS),
        (BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.NOT_ENOUGH_REPLICAS),
        (BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE), ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_failed_verification_is_answered_as_in_kafka(
    bench: Bench,
    coordinator: FakeCoordinator,
    answer: ErrorCode | BrokerError,
    expected: ErrorCode,
) -> None:
    coordinator.answer = answer
    row = the_only(await produce_in(bench, batch(producer=(PRODUCER, 0, 0), transactional=True)))
    assert (code(row), row.base_offset) == (expected, -1)
    assert await read(bench) == []
    metrics = bench.app.rooms().metrics
    assert (metrics.verification_failures, metrics.verifications.count) == (1, 1)
    coordinator.answer = NONE
    assert await put(bench) is NONE
    assert (metrics.verification_failures, metrics.verifications.count) == (1, 2)


async def test_without_a_coordinator_the_producer_retries(bench: Bench) -> None:
    await bench.create("t")
    assert await put(bench) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert await put(bench) is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_marker_during_the_verification_invalidates_it(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    coordinator.is_here = False
    coordinator.held = asyncio.Event()
    late = asyncio.ensure_future(put(bench))
    await idle()
    assert await end(bench, commit=False) is NONE
    coordinator.held.set()
    assert await late is NOT_IN_TRANSACTION
    coordinator.held = None
    assert await put(bench) is NONE


async def test_later_batch_waits_for_the_first_one_that_was_not_verified(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    coordinator.answer = BrokerError(ErrorCode.NOT_COORDINATOR)
    assert await put(bench, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
    coordinator.answer = NONE
    assert await put(bench, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await put(bench, 0) is NONE
    assert await put(bench, 1) is NONE


async def test_retry_of_a_batch_gets_its_first_offset(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    one = of(bench, b"a", b"b")
    first = the_only(await produce_in(bench, one))
    assert await end(bench) is NONE
    again = the_only(await produce_in(bench, one))
    assert (code(again), again.base_offset) == (NONE, first.base_offset)
    found = await bench.fetch("t", 0)
    assert found.last_stable_offset == found.high_watermark == 3


async def test_fenced_producer_writes_nothing(bench: Bench, coordinator: FakeCoordinator) -> None:
    assert await put(bench) is NONE
    assert await end(bench, commit=False, epoch=1) is NONE
    assert await put(bench, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await put(bench, 0, epoch=1) is NONE


async def test_request_without_a_transactional_id_is_refused_as_a_whole(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    one = batch(producer=(PRODUCER, 0, 0), transactional=True)
    rows = await produce_in(bench, batch(b"plain"), one, transactional_id=None)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert [code(row) for row in rows] == [refused, refused]
    assert coordinator.asked == []
    assert await read(bench) == []


async def test_request_of_two_producers_is_refused_as_a_whole(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    one, other = (batch(producer=(each, 0, 0), transactional=True) for each in (7, 8))
    rows = await produce_in(bench, one, other, batch(b"plain"))
    assert [code(row) for row in rows] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3
    assert coordinator.asked == []


@pytest.mark.parametrize("codec", list(Codec))
async def test_compressed_batches_of_compacted_topics_are_verified(
    bench: Bench, coordinator: FakeCoordinator, codec: Codec
) -> None:
    await bench.create("compacted", configs={"cleanup.policy": "compact"})
    one = batch(b"v" * 50, codec=codec, producer=(PRODUCER, 0, 0), transactional=True)
    assert code(the_only(await produce_in(bench, one, topic="compacted"))) is NONE
    coordinator.answer = NOT_IN_TRANSACTION
    two = batch(b"v" * 50, codec=codec, producer=(8, 0, 0), transactional=True)
    assert code(the_only(await produce_in(bench, two, topic="compacted"))) is NOT_IN_TRANSACTION


async def test_errors_of_single_partitions_do_not_stop_the_others(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    good = batch(producer=(PRODUCER, 0, 0), transactional=True)
    rows = await produce_in(bench, good, good[:-1], good[:30], good)
    assert [code(row) for row in rows] == [
        NONE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_connection_closes_after_a_failed_batch_with_acks_0(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    coordinator.answer = NOT_IN_TRANSACTION
    with pytest.raises(CloseConnection):
        await produce_in(bench, batch(producer=(PRODUCER, 0, 0), transactional=True), acks=0)


async def test_option_turns_verification_off(bench: Bench, coordinator: FakeCoordinator) -> None:
    coordinator.answer = NOT_IN_TRANSACTION
    assert await put(bench) is NOT_IN_TRANSACTION
    await bench.app.live.change_broker(
        None,
        lambda values: {**values, "transaction.partition.verification.enable": "false"},
        replaces=False,
    )
    assert await put(bench) is NONE
    # A marker may end the open transaction before the next batch is appended.
    partition = bench.app.replicas.partition(T0)
    verification = bench.app.verifying.verification
    assert verification.begin(partition, Producer(PRODUCER, 0), 1, 0) is EXEMPT


async def test_partition_that_another_broker_leads_is_not_verified(
    bench: Bench, coordinator: FakeCoordinator
) -> None:
    await share(bench, leader=FOLLOWER)
    assert await put(bench) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    rows = await produce_in(bench, of(bench, b"a"), topic="missing")
    assert code(the_only(rows)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.asked == []
