"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn: turns each request into a call of the transaction
coordinator.

Version 4 of AddPartitionsToTxn is for brokers only: the leader of a partition asks whether the
partition is in a transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import AUTO_CREATE_WAIT_S, Request, Services
from pybroker.handlers.control import require_broker
from pybroker.model import INTERNAL_TOPICS, TopicPartition
from pybroker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)
from pybroker.yield_every import yield_every

_FIRST_FOR_BROKERS: Final = 4
_FIRST_WITH_PRODUCER_FENCED: Final = 2

Codes = Mapping[TopicPartition, ErrorCode]


async def handle_add_partitions_to_txn(
    services: Services, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if request.version < _FIRST_FOR_BROKERS:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=message.transactional_id,
            producer_id=message.producer_id,
            producer_epoch=message.producer_epoch,
            topics=message.topics,
        )
        codes = await _codes(services, request, transaction)
        return AddPartitionsToTxnResponse(results=_results(message.topics, codes))
    try:
        require_broker(services, request)
    except BrokerError as error:
        return AddPartitionsToTxnResponse(error_code=error.code)
    return AddPartitionsToTxnResponse(
        transactions=[
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topics=_results(transaction.topics, await _codes(services, request, transaction)),
            )
            for transaction in message.transactions
        ]
    )


async def _codes(
    services: Services, request: Request, transaction: AddPartitionsToTxnTransaction
) -> Codes:
    """Add the partitions to the transaction, or only verify that they are in it. Return the error
    code of each. If one partition cannot be added, none is added, as in Kafka."""
    keys = [
        TopicPartition(topic.name, number)
        for topic in transaction.topics
        for number in topic.partitions
    ]
    faults: dict[TopicPartition, ErrorCode] = {}
    async for key in yield_every(keys):
        code = _fault_of(services, request, key)
        if code is not ErrorCode.NONE:
            faults[key] = code
    if faults:
        return {key: faults.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED) for key in keys}
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    try:
        if transaction.verify_only:
            return await services.transactions.verify(transaction.transactional_id, producer, keys)
        await services.transactions.add_partitions(
            transaction.transactional_id, producer, frozenset(keys)
        )
    except BrokerError as error:
        return dict.fromkeys(keys, _understood(error.code, request.version))
    return dict.fromkeys(keys, ErrorCode.NONE)


def _fault_of(services: Services, request: Request, key: TopicPartition) -> ErrorCode:
    if request.version < _FIRST_FOR_BROKERS and key.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not services.metadata.exists(key):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _results(
    topics: Sequence[AddPartitionsToTxnTopic], codes: Codes
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, error_code=codes[TopicPartition(topic.name, number)]
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


async def handle_add_offsets_to_txn(
    services: Services, request: Request, message: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the group's partition of `__consumer_offsets` to the transaction. Create this topic if it
    is missing."""
    producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
    topic = services.group_topic
    try:
        if not topic.is_known:
            await topic.settle(AUTO_CREATE_WAIT_S)
        key = TopicPartition(topic.name, topic.partition_of(message.group_id))
        await services.transactions.add_partitions(
            message.transactional_id, producer, frozenset((key,))
        )
    except BrokerError as error:
        return AddOffsetsToTxnResponse(error_code=_understood(error.code, request.version))
    return AddOffsetsToTxnResponse()


async def handle_end_txn(
    services: Services, request: Request, message: EndTxnRequest
) -> EndTxnResponse:
    producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
    try:
        await services.transactions.end(
            message.transactional_id, producer, is_commit=message.committed
        )
    except BrokerError as error:
        return EndTxnResponse(error_code=_understood(error.code, request.version))
    return EndTxnResponse()


def _understood(code: ErrorCode, version: int) -> ErrorCode:
    """Return the code for a response in this version: before version 2, INVALID_PRODUCER_EPOCH
    replaces PRODUCER_FENCED."""
    if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
