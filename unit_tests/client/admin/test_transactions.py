"""Tests that requests of the admin client about transactions go to the coordinator of the
transactional id or to the partition's leader; an abort that may have been carried out is not
repeated."""

from __future__ import annotations

import pytest

from pybroker.client.admin.transactions import OpenTransaction, TransactionListing
from pybroker.client.errors import ConnectionLost, ResponseError, UnsupportedByBroker
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import FindCoordinatorRequest
from pybroker.wire.messages.transaction_admin import (
    DescribedTransaction,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionTopicData,
)
from pybroker.wire.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from unit_tests.client.admin.test_groups import admin, coordinates, in_turn, limited
from unit_tests.client.fake_broker import LOSE_ANSWER, NODE, FakeBroker

A0 = TopicPartition("a", 0)
OPEN = OpenTransaction(A0, producer_id=7, producer_epoch=2, coordinator_epoch=4)
ROW = ListedTransaction(transactional_id="b", producer_id=7, transaction_state="Ongoing")


def marked(code: ErrorCode) -> WriteTxnMarkersResponse:
    result = WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
    topics = [WritableTxnMarkerTopicResult(name="a", partitions=[result])]
    return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=topics)])


async def test_transactions_are_listed_with_the_filters() -> None:
    first = ListedTransaction(transactional_id="a", producer_id=8, transaction_state="Empty")
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.LIST_TRANSACTIONS] = in_turn(
            ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            ListTransactionsResponse(transaction_states=[ROW, first]),
        )
        found = await target.list_transactions(
            states=["Ongoing", "Empty"], producer_ids=[7, 8], duration_ms=5
        )
        assert found.check().transactions == (
            TransactionListing("a", NODE, 8, "Empty"),
            TransactionListing("b", NODE, 7, "Ongoing"),
        )
        asked = broker.requests(ListTransactionsRequest)[-1]
        assert isinstance(asked, ListTransactionsRequest)
        assert asked == ListTransactionsRequest(
            state_filters=["Ongoing", "Empty"], producer_id_filters=[7, 8], duration_filter=5
        )


async def test_old_broker_cannot_list_by_duration() -> None:
    async with FakeBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _: limited(list_transactions=0)
        broker.handlers[ApiKey.LIST_TRANSACTIONS] = lambda _: ListTransactionsResponse(
            transaction_states=[ROW]
        )
        async with admin(broker) as target:
            assert len((await target.list_transactions()).check().transactions) == 1
            refused = await target.list_transactions(duration_ms=0)
            with pytest.raises(UnsupportedByBroker, match="up to version 0"):
                refused.check()


@pytest.mark.parametrize("find_version", [3, 4])
async def test_descriptions_come_from_the_transaction_coordinator(find_version: int) -> None:
    good = DescribedTransaction(
        transactional_id="t",
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=99,
        producer_id=7,
        producer_epoch=2,
        topics=[TransactionTopicData(topic="a", partitions=[1, 0])],
    )
    absent = DescribedTransaction(
        transactional_id="u", error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    )
    moved = DescribedTransaction(transactional_id="t", error_code=ErrorCode.NOT_COORDINATOR)
    async with FakeBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _: limited(find_coordinator=find_version)
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        broker.handlers[ApiKey.DESCRIBE_TRANSACTIONS] = in_turn(
            DescribeTransactionsResponse(transaction_states=[moved, absent]),
            DescribeTransactionsResponse(transaction_states=[good]),
        )
        async with admin(broker) as target:
            found = await target.describe_transactions(["t", "u"])
        described = found["t"].check()
        assert (described.coordinator, described.state, described.start_ms) == (NODE, "Ongoing", 99)
        assert (described.producer_id, described.producer_epoch) == (7, 2)
        assert described.partitions == (A0, TopicPartition("a", 1))
        with pytest.raises(ResponseError, match="TRANSACTIONAL_ID_NOT_FOUND"):
            found["u"].check()
        lookups = broker.requests(FindCoordinatorRequest)
        assert lookups
        for asked in lookups:
            assert isinstance(asked, FindCoordinatorRequest)
            assert asked.key_type == 1


async def test_fencing_waits_for_the_abort_of_the_open_transaction() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        broker.handlers[ApiKey.INIT_PRODUCER_ID] = in_turn(
            InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
            InitProducerIdResponse(producer_id=7, producer_epoch=3),
        )
        found = (await target.fence_producers(["t"]))["t"].check()
        assert (found.producer_id, found.producer_epoch) == (7, 3)
        asked = broker.requests(InitProducerIdRequest)
        assert len(asked) == 2
        for each in asked:
            assert isinstance(each, InitProducerIdRequest)
            assert (each.transactional_id, each.producer_id, each.producer_epoch) == ("t", -1, -1)
        broker.handlers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
        with pytest.raises(ResponseError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            (await target.fence_producers(["t"]))["t"].check()


async def test_abort_sends_one_marker_to_the_leader() -> None:
    async with FakeBroker({"a": 1}) as broker, admin(broker) as target:
        broker.handlers[ApiKey.WRITE_TXN_MARKERS] = in_turn(
            marked(ErrorCode.NOT_LEADER_OR_FOLLOWER), marked(ErrorCode.NONE)
        )
        await target.abort_transaction(OPEN)
        asked = broker.requests(WriteTxnMarkersRequest)
        assert len(asked) == 2 and isinstance(asked[-1], WriteTxnMarkersRequest)
        (marker,) = asked[-1].markers
        assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 2, 4)
        assert marker.transaction_result is False
        assert [(each.name, each.partition_indexes) for each in marker.topics] == [("a", [0])]
        broker.handlers[ApiKey.WRITE_TXN_MARKERS] = lambda _: marked(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED
        )
        with pytest.raises(ResponseError, match="TRANSACTION_COORDINATOR_FENCED"):
            await target.abort_transaction(OPEN)


async def test_abort_that_may_have_been_carried_out_is_not_repeated() -> None:
    async with FakeBroker({"a": 1}) as broker, admin(broker) as target:
        broker.handlers[ApiKey.WRITE_TXN_MARKERS] = lambda _: marked(ErrorCode.NONE)
        broker.faults[ApiKey.WRITE_TXN_MARKERS].append(LOSE_ANSWER)
        with pytest.raises(ConnectionLost):
            await target.abort_transaction(OPEN)
        assert len(broker.requests(WriteTxnMarkersRequest)) == 1
