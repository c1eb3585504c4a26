"""DescribeTransactions and ListTransactions (KIP-664): the transactional ids that this broker
coordinates.
"""

from __future__ import annotations

from itertools import groupby

from pybroker.coordinator.transactions.states import TransactionState
from pybroker.coordinator.transactions.transaction import Transaction
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.wire.messages.transaction_admin import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionTopicData,
)
from pybroker.yield_every import yield_every


async def handle_describe_transactions(
    services: Services, request: Request, message: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    described = [
        _described(services, transactional_id)
        async for transactional_id in yield_every(message.transactional_ids)
    ]
    return DescribeTransactionsResponse(transaction_states=described)


def _described(services: Services, transactional_id: str) -> DescribedTransaction:
    try:
        found = services.transactions.describe(transactional_id)
    except BrokerError as error:
        return DescribedTransaction(error_code=error.code, transactional_id=transactional_id)
    keys = sorted(found.partitions)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
        topics=[
            TransactionTopicData(topic=topic, partitions=[key.partition for key in some])
            for topic, some in groupby(keys, lambda key: key.topic)
        ],
    )


async def handle_list_transactions(
    services: Services, request: Request, message: ListTransactionsRequest
) -> ListTransactionsResponse:
    known = {state.value: state for state in TransactionState}
    states = {known[name] for name in message.state_filters if name in known}
    producers = set(message.producer_id_filters)
    now_ms = services.clock.wall_ms()

    def is_wanted(found: Transaction) -> bool:
        if message.state_filters and found.state not in states:
            return False
        if producers and found.producer.producer_id not in producers:
            return False
        # As in Kafka, an id that has begun no transaction (start -1) passes the filter.
        duration_ms = message.duration_filter
        return duration_ms < 0 or now_ms - found.start_ms > duration_ms

    listed = []
    try:
        async for found in yield_every(services.transactions.transactions()):
            if is_wanted(found):
                listed.append(
                    ListedTransaction(
                        transactional_id=found.transactional_id,
                        producer_id=found.producer.producer_id,
                        transaction_state=found.state.value,
                    )
                )
    except BrokerError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=[name for name in message.state_filters if name not in known],
        transaction_states=listed,
    )
