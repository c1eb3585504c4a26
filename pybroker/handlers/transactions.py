"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn. Only brokers send version 4 of
AddPartitionsToTxn: the leader of a partition asks the coordinator whether the partition is in a
transaction (KIP-890)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch
from pybroker.deferred import Deferred
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
from pybroker.yield_every import ITEMS_PER_YIELD, yield_every

_FIRST_FOR_BROKERS: Final = 4
_FIRST_WITH_PRODUCER_FENCED: Final = 2

Codes = Mapping[TopicPartition, ErrorCode]
T = TypeVar("T")


def handle_add_partitions_to_txn(
    services: Services, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    if request.version >= _FIRST_FOR_BROKERS:
        return _answer_broker(services, request, message)
    keys = _keys(message.topics)
    if len(keys) > ITEMS_PER_YIELD:
        return _add_many(services, request, message, keys)
    return _add(services, request, message, keys, [_fault_of(services, request, k) for k in keys])


async def _add_many(
    services: Services,
    request: Request,
    message: AddPartitionsToTxnRequest,
    keys: Sequence[TopicPartition],
) -> AddPartitionsToTxnResponse:
    faults = [_fault_of(services, request, key) async for key in yield_every(keys)]
    added = _add(services, request, message, keys, faults)
    return await added if isinstance(added, Awaitable) else added


def _add(
    services: Services,
    request: Request,
    message: AddPartitionsToTxnRequest,
    keys: Sequence[TopicPartition],
    faults: Sequence[ErrorCode],
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    """Add the partitions `keys` to the transaction, or none of them if any has a fault. `faults`
    has one code for each of `keys`: NONE, or the fault."""
    if any(faults):
        return _added(message, _not_attempted(keys, faults))

    def add() -> Awaitable[None] | None:
        producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
        return services.transactions.add_partitions(
            message.transactional_id, producer, frozenset(keys)
        )

    def answer(code: ErrorCode) -> AddPartitionsToTxnResponse:
        return _added(message, dict.fromkeys(keys, _understood(code, request.version)))

    return _when_stored(add, answer)


def _added(message: AddPartitionsToTxnRequest, codes: Codes) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results=_results(message.topics, codes))


def _when_stored(
    change: Callable[[], Awaitable[None] | None], answer: Callable[[ErrorCode], T]
) -> T | Awaitable[T]:
    """Call `change`. Return the response `answer(code)`, or an awaitable of it if the change is not
    stored yet. `code`: NONE, or the code of the change's BrokerError."""
    try:
        stored = change()
    except BrokerError as error:
        return answer(error.code)
    if stored is None:
        return answer(ErrorCode.NONE)
    if not isinstance(stored, Deferred):
        return _after(stored, answer)
    response: Deferred[T] = Deferred(stored.cancel)

    def done(stored: Deferred[None]) -> None:
        error = stored.exception()
        if error is None or isinstance(error, BrokerError):
            response.set_result(answer(ErrorCode.NONE if error is None else error.code))
        else:
            response.set_exception(error)

    stored.add_done_callback(done)
    return response


async def _after(stored: Awaitable[None], answer: Callable[[ErrorCode], T]) -> T:
    try:
        await stored
    except BrokerError as error:
        return answer(error.code)
    return answer(ErrorCode.NONE)


async def _answer_broker(
    services: Services, request: Request, message: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
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
    """Add the partitions (all or none, as in Kafka). If the request has `verify_only`, only verify
    them. Return the error code of each partition."""
    keys = _keys(transaction.topics)
    faults = [_fault_of(services, request, key) async for key in yield_every(keys)]
    if any(faults):
        return _not_attempted(keys, faults)
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    name, coordinators = transaction.transactional_id, services.transactions
    try:
        if transaction.verify_only:
            return await coordinators.verify(name, producer, keys)
        stored = coordinators.add_partitions(name, producer, frozenset(keys))
        if stored is not None:
            await stored
    except BrokerError as error:
        return dict.fromkeys(keys, _understood(error.code, request.version))
    return dict.fromkeys(keys, ErrorCode.NONE)


def _keys(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _not_attempted(keys: Sequence[TopicPartition], faults: Sequence[ErrorCode]) -> Codes:
    """Return the codes for a request that adds no partition, because at least one of its partitions
    has a fault. A partition without a fault gets OPERATION_NOT_ATTEMPTED."""
    return {
        key: fault or ErrorCode.OPERATION_NOT_ATTEMPTED
        for key, fault in zip(keys, faults, strict=True)
    }


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
        stored = services.transactions.add_partitions(
            message.transactional_id, producer, frozenset((key,))
        )
        if stored is not None:
            await stored
    except BrokerError as error:
        return AddOffsetsToTxnResponse(error_code=_understood(error.code, request.version))
    return AddOffsetsToTxnResponse()


def handle_end_txn(
    services: Services, request: Request, message: EndTxnRequest
) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    producer = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
    return _when_stored(
        lambda: services.transactions.end(
            message.transactional_id, producer, is_commit=message.committed
        ),
        lambda code: EndTxnResponse(error_code=_understood(code, request.version)),
    )


def _understood(code: ErrorCode, version: int) -> ErrorCode:
    """Return the code for a response in this version: before version 2, INVALID_PRODUCER_EPOCH
    replaces PRODUCER_FENCED."""
    if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
