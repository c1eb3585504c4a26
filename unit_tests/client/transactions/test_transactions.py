"""Tests of the transactional producer with a coordinator that refuses and loses requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pybroker.client import GroupMetadata, OffsetAndMetadata
from pybroker.client.errors import (
    AbortableTransactionError,
    ClientError,
    DeadlinePassed,
    DeliveryFailed,
    FatalTransactionError,
    ProducerFenced,
    TransactionConflict,
    TransactionError,
)
from pybroker.client.producer import Producer
from pybroker.client.transactions.states import LEFT_GROUP
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import iter_headers
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import FindCoordinatorRequest
from pybroker.wire.messages.produce import ProduceRequest
from pybroker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from unit_tests.client.fake_broker import (
    LOSE_ANSWER,
    LOSE_REQUEST,
    NEVER_ANSWER,
    FakeBroker,
    first_sequences,
    refuse,
)
from unit_tests.client.fake_transactions import PRODUCER_ID, FakeCoordinator
from unit_tests.client.test_producer import QUICK
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import PATIENCE_S

PARTITION = TopicPartition("t", 0)
REQUESTS = [
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
]
IN_TRANSACTION = REQUESTS[1:]
MOVED = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


@asynccontextmanager
async def stage(**options: Any) -> AsyncIterator[tuple[FakeBroker, FakeCoordinator, Producer]]:
    """Yield a broker, its coordinator, and a producer that is not started."""
    async with FakeBroker({"t": 3, "u": 1}) as broker:
        coordinator = FakeCoordinator(broker).attach()
        producer = Producer(broker.address, **{**QUICK, "transactional_id": "tx", **options})
        async with asyncio.timeout(PATIENCE_S):
            yield broker, coordinator, producer


async def whole(producer: Producer, value: bytes = b"v", offset: int = 5) -> None:
    """Run a whole transaction with one record and one offset."""
    async with producer.transaction():
        await producer.send("t", value, partition=0)
        await producer.send_offsets({PARTITION: offset}, "g")


async def test_partitions_are_added_by_one_request_before_the_first_batch() -> None:
    async with stage(linger_ms=5) as (broker, coordinator, producer), producer:
        for _ in range(2):
            async with producer.transaction():
                for number in range(3):
                    await producer.send("t", b"v", partition=number)
                await producer.send("u", b"v")
        added = broker.requests(AddPartitionsToTxnRequest)
        assert [
            {(topic.name, *topic.partitions) for topic in request.topics}
            for request in added
            if isinstance(request, AddPartitionsToTxnRequest)
        ] == [{("t", 0, 1, 2), ("u", 0)}] * 2
        batches = broker.requests(ProduceRequest)
        assert broker.seen.index(added[0]) < broker.seen.index(batches[0])
        for request in batches:
            assert isinstance(request, ProduceRequest)
            assert request.transactional_id == "tx"
            for topic in request.topic_data:
                for data in topic.partition_data:
                    for _, header in iter_headers(data.records or b""):
                        assert header.is_transactional
                        assert header.producer_id == PRODUCER_ID
        assert coordinator.ends == [True, True]


async def test_a_transaction_without_records_sends_no_request() -> None:
    async with stage() as (broker, coordinator, producer), producer:
        async with producer.transaction():
            pass
        producer.begin_transaction()
        await producer.abort_transaction()
        assert not broker.requests(EndTxnRequest)
        await whole(producer)
        assert coordinator.ends == [True]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
@pytest.mark.parametrize("key", REQUESTS)
async def test_a_busy_or_moved_coordinator_is_asked_again(key: ApiKey, code: ErrorCode) -> None:
    async with stage() as (broker, coordinator, producer):
        coordinator.will(key, code, code)
        async with producer:
            await whole(producer)
        assert coordinator.ends == [True]
        assert coordinator.offsets == {PARTITION: 5}
        assert broker.partition().values() == [b"v"]
        searches = len(broker.requests(FindCoordinatorRequest))
        assert searches == 2 + 2 * (code in MOVED)


async def test_the_lookup_of_the_coordinator_is_repeated() -> None:
    async with stage() as (_, coordinator, producer):
        coordinator.will(ApiKey.FIND_COORDINATOR, *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3)
        async with producer:
            await whole(producer)
        assert coordinator.ends == [True]


@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_ANSWER], ids=["request", "answer"])
@pytest.mark.parametrize("key", IN_TRANSACTION)
async def test_a_lost_request_is_repeated(key: ApiKey, fault: Any) -> None:
    async with stage() as (broker, coordinator, producer), producer:
        broker.will(key, fault)
        await whole(producer)
        assert coordinator.ends == [True]
        assert coordinator.offsets == {PARTITION: 5}


async def test_an_exception_aborts_and_fails_the_unsent_records() -> None:
    async with stage(linger_ms=60_000, delivery_timeout_ms=120_000) as (
        broker, coordinator, producer,
    ), producer:  # fmt: skip
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_offsets({PARTITION: 5}, "g")
                delivery = await producer.send("t", b"unsent", partition=0)
                raise ZeroDivisionError
        with pytest.raises(DeliveryFailed, match="aborted"):
            await delivery
        assert coordinator.ends == [False]
        assert coordinator.offsets == {}
        await whole(producer)
        assert broker.partition().values() == [b"v"]
        assert coordinator.epoch == 0


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("key", IN_TRANSACTION)
async def test_a_fenced_producer_says_so(key: ApiKey, code: ErrorCode) -> None:
    async with stage() as (_, coordinator, producer), producer:
        coordinator.will(key, code)
        with pytest.raises(ProducerFenced, match="another producer was started with the same"):
            await whole(producer)
        for call in (producer.send("t", b"v"), producer.commit_transaction(), whole(producer)):
            with pytest.raises(ProducerFenced, match="Close this producer"):
                await call


@pytest.mark.parametrize("key", IN_TRANSACTION)
async def test_an_unauthorized_id_is_fatal(key: ApiKey) -> None:
    async with stage() as (_, coordinator, producer), producer:
        coordinator.will(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(FatalTransactionError, match="remove the cause"):
            await whole(producer)
        with pytest.raises(FatalTransactionError):
            producer.begin_transaction()


async def test_a_refused_start_names_the_cause() -> None:
    async with stage() as (_, coordinator, producer):
        coordinator.will(ApiKey.INIT_PRODUCER_ID, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        with pytest.raises(FatalTransactionError, match="INVALID_TRANSACTION_TIMEOUT"):
            await producer.start()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
    ],
)
async def test_a_refused_batch_aborts_and_raises_the_epoch(code: ErrorCode) -> None:
    async with stage() as (broker, coordinator, producer), producer:
        await whole(producer, b"1")
        broker.will(ApiKey.PRODUCE, refuse(code))
        with pytest.raises(AbortableTransactionError, match=f"{code.name}.*Abort the transaction"):
            await whole(producer, b"2", 6)
        await whole(producer, b"3", 7)
        assert coordinator.ends == [True, False, True]
        assert coordinator.offsets == {PARTITION: 7}
        assert first_sequences(broker.seen) == [(0, 0), (0, 1), (1, 0)]
        asked = broker.requests(InitProducerIdRequest)[-1]
        assert isinstance(asked, InitProducerIdRequest)
        assert (asked.producer_id, asked.producer_epoch) == (PRODUCER_ID, 0)


async def test_calls_after_a_failure_say_to_abort() -> None:
    async with stage() as (broker, coordinator, producer), producer:
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))
        producer.begin_transaction()
        with pytest.raises(DeliveryFailed):
            await (await producer.send("t", b"v", partition=0))
        with pytest.raises(AbortableTransactionError, match="INVALID_RECORD"):
            await producer.send("t", b"v", partition=0)
        with pytest.raises(AbortableTransactionError):
            await producer.send_offsets({PARTITION: 5}, "g")
        with pytest.raises(AbortableTransactionError):
            await producer.commit_transaction()
        with pytest.raises(AbortableTransactionError):
            producer.begin_transaction()
        await producer.abort_transaction()
        await whole(producer)
        assert coordinator.ends == [False, True]


async def test_a_forgotten_producer_id_needs_no_end_of_the_transaction() -> None:
    async with stage() as (broker, coordinator, producer), producer:
        coordinator.will(ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        with pytest.raises(AbortableTransactionError):
            async with producer.transaction():
                await producer.send_offsets({PARTITION: 5}, "g")
        assert not broker.requests(EndTxnRequest)
        assert coordinator.epoch == 1
        await whole(producer)
        assert coordinator.ends == [True]


@pytest.mark.parametrize("code", sorted(LEFT_GROUP))
async def test_offsets_of_another_generation_abort(code: ErrorCode) -> None:
    async with stage() as (broker, coordinator, producer), producer:
        coordinator.will(ApiKey.TXN_OFFSET_COMMIT, code)
        group = GroupMetadata("g", 3, "m1", "i1")
        given: dict[TopicPartition, OffsetAndMetadata | int] = {
            PARTITION: OffsetAndMetadata(5, "note", 2),
            TopicPartition("u", 0): 6,
        }
        with pytest.raises(AbortableTransactionError, match="continue from the committed offsets"):
            async with producer.transaction():
                await producer.send_offsets(given, group)
        async with producer.transaction():
            await producer.send_offsets(given, group)
        assert coordinator.ends == [False, True]
        assert coordinator.offsets == {PARTITION: 5, TopicPartition("u", 0): 6}
        (sent, _) = broker.requests(TxnOffsetCommitRequest)
        assert isinstance(sent, TxnOffsetCommitRequest)
        who = (sent.group_id, sent.generation_id, sent.member_id, sent.group_instance_id)
        assert who == ("g", 3, "m1", "i1")
        row = sent.topics[0].partitions[0]
        assert (row.committed_leader_epoch, row.committed_metadata) == (2, "note")


async def test_a_group_is_added_once() -> None:
    async with stage() as (broker, coordinator, producer), producer:
        async with producer.transaction():
            await producer.send_offsets({}, "g")
            for offset in (5, 6):
                await producer.send_offsets({PARTITION: offset}, "g")
        assert len(broker.requests(AddOffsetsToTxnRequest)) == 1
        assert coordinator.offsets == {PARTITION: 6}
        with pytest.raises(ValueError, match="expected 0 or more"):
            await producer.send_offsets({PARTITION: -1}, "g")


async def test_a_commit_without_an_answer_may_be_repeated() -> None:
    async with stage(max_block_ms=300) as (broker, coordinator, producer), producer:
        producer.begin_transaction()
        await (await producer.send("t", b"v", partition=0))
        broker.will(ApiKey.END_TXN, NEVER_ANSWER)
        with pytest.raises(DeadlinePassed, match="call commit_transaction again") as caught:
            await producer.commit_transaction()
        assert not caught.value.definite
        with pytest.raises(TransactionConflict, match="to learn the outcome"):
            await producer.abort_transaction()
        with pytest.raises(TransactionConflict, match="a commit was called"):
            producer.begin_transaction()
        await producer.commit_transaction()
        assert coordinator.ends == [True]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, FatalTransactionError),
        (ErrorCode.INVALID_TXN_STATE, FatalTransactionError),
    ],
)
async def test_a_refusal_after_a_commit_without_an_answer_leaves_the_outcome_unknown(
    code: ErrorCode, kind: type[TransactionError]
) -> None:
    async with stage(max_block_ms=300) as (broker, coordinator, producer), producer:
        producer.begin_transaction()
        await (await producer.send("t", b"v", partition=0))
        broker.will(ApiKey.END_TXN, NEVER_ANSWER)
        with pytest.raises(DeadlinePassed):
            await producer.commit_transaction()
        coordinator.will(ApiKey.END_TXN, code)
        with pytest.raises(kind, match="may be committed") as caught:
            await producer.commit_transaction()
        assert not caught.value.definite
        with pytest.raises(kind, match="may be committed"):
            producer.begin_transaction()


@pytest.mark.parametrize("first", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
async def test_a_coordinator_that_gave_up_a_commit_may_have_stored_it(first: ErrorCode) -> None:
    """The coordinator answers so if too few in-sync replicas have the state in time."""
    async with stage() as (_, coordinator, producer), producer:
        producer.begin_transaction()
        await (await producer.send("t", b"v", partition=0))
        coordinator.will(ApiKey.END_TXN, first, ErrorCode.PRODUCER_FENCED)
        with pytest.raises(ProducerFenced, match="may be committed") as caught:
            await producer.commit_transaction()
        assert not caught.value.definite


async def test_an_abort_without_an_answer_is_completed_by_the_next_block() -> None:
    async with stage(max_block_ms=300) as (broker, coordinator, producer), producer:
        broker.will(ApiKey.END_TXN, NEVER_ANSWER)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await (await producer.send("t", b"v", partition=0))
                raise ZeroDivisionError
        await whole(producer)
        assert coordinator.ends == [False, True]


async def test_failed_offsets_prevent_the_commit() -> None:
    """Otherwise the transaction would be committed without its offsets, and its input would be read
    again."""
    async with stage(max_block_ms=300) as (broker, coordinator, producer), producer:
        broker.will(ApiKey.TXN_OFFSET_COMMIT, NEVER_ANSWER)
        producer.begin_transaction()
        with pytest.raises(DeadlinePassed):
            await producer.send_offsets({PARTITION: 5}, "g")
        with pytest.raises(AbortableTransactionError, match="offsets of group g"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert (coordinator.ends, coordinator.epoch) == ([False], 1)


async def test_a_commit_waits_for_records_whose_waiting_task_is_cancelled() -> None:
    async with stage(linger_ms=50) as (broker, coordinator, producer), producer:
        async with producer.transaction():
            waiting = asyncio.ensure_future(await producer.send("t", b"v", partition=0))
            await loop_turns(1)
            waiting.cancel()
        assert broker.partition().values() == [b"v"]
        ends = [isinstance(request, EndTxnRequest) for request in broker.seen]
        batches = [isinstance(request, ProduceRequest) for request in broker.seen]
        assert ends.index(True) > batches.index(True)
        assert coordinator.ends == [True]


async def test_a_cancelled_commit_aborts() -> None:
    async with stage() as (broker, coordinator, producer), producer:
        broker.will(ApiKey.ADD_PARTITIONS_TO_TXN, NEVER_ANSWER)

        async def run() -> None:
            async with producer.transaction():
                await producer.send("t", b"v", partition=0)

        task = asyncio.create_task(run())
        await broker.until(lambda: bool(broker.requests(AddPartitionsToTxnRequest)))
        task.cancel()
        broker.drop_connections()
        with pytest.raises(asyncio.CancelledError):
            await task
        await whole(producer, b"2")
        assert coordinator.ends[-1]
        assert broker.partition().values() == [b"2"]


async def test_calls_outside_a_transaction_are_refused() -> None:
    async with stage() as (_, coordinator, producer), producer:
        with pytest.raises(TransactionConflict, match=r'send: no transaction is open; .*"a trans'):
            await producer.send("t", b"v")
        with pytest.raises(TransactionConflict):
            await producer.send_offsets({PARTITION: 5}, "g")
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(TransactionConflict):
                await call()
        producer.begin_transaction()
        with pytest.raises(TransactionConflict, match="a transaction is open"):
            producer.begin_transaction()
        await producer.abort_transaction()
        assert coordinator.ends == []


async def test_a_producer_without_an_id_has_no_transactions() -> None:
    async with stage(transactional_id=None) as (_, _, producer), producer:
        with pytest.raises(TransactionConflict, match=r"needs the option transactional\.id"):
            producer.begin_transaction()
        with pytest.raises(TransactionConflict):
            async with producer.transaction():
                pass


async def test_close_aborts_the_open_transaction() -> None:
    async with stage() as (_, coordinator, producer):
        async with producer:
            producer.begin_transaction()
            await (await producer.send("t", b"v", partition=0))
        assert coordinator.ends == [False]
        with pytest.raises(ClientError):
            producer.begin_transaction()


async def test_a_start_ends_the_transaction_of_the_producer_before() -> None:
    async with stage() as (broker, coordinator, producer), producer:
        producer.begin_transaction()
        await (await producer.send("t", b"v", partition=0))
        async with Producer(broker.address, **QUICK, transactional_id="tx") as later:
            assert coordinator.ends == [False]
            with pytest.raises(ProducerFenced):
                await producer.commit_transaction()
            await whole(later)
        assert coordinator.ends == [False, True]
