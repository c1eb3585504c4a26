"""DescribeProducers (KIP-664): returns the producers of a partition and their state. Every replica
can answer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.model import TopicPartition, topic_name_fault
from pybroker.wire.messages.transaction_admin import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    ProducerState,
)

_PRODUCERS_MAX: Final = 100_000
"""The maximum number of producers in a response. Once it is reached, further partitions get an
error. A request may name a partition any number of times, and the response must not fill the
memory."""
_PRODUCERS_A_TURN: Final = 5000
"""After returning this many producers, a request yields to the event loop."""


async def handle_describe_producers(
    services: Services, request: Request, message: DescribeProducersRequest
) -> DescribeProducersResponse:
    topics = []
    producers = since_turn = 0
    for topic in message.topics:
        partitions: list[DescribeProducersPartitionResponse] = []
        topics.append(DescribeProducersTopicResponse(name=topic.name, partitions=partitions))
        for number in topic.partition_indexes:
            if producers >= _PRODUCERS_MAX:
                partitions.append(_too_many(number))
                continue
            described = _describe(services, TopicPartition(topic.name, number))
            partitions.append(described)
            found = len(described.active_producers)
            producers += found
            since_turn += found + 1
            if since_turn >= _PRODUCERS_A_TURN:
                since_turn = 0
                await asyncio.sleep(0)
    return DescribeProducersResponse(topics=topics)


def _too_many(number: int) -> DescribeProducersPartitionResponse:
    return DescribeProducersPartitionResponse(
        partition_index=number,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"the response has {_PRODUCERS_MAX} producers; ask for fewer partitions",
    )


def _describe(services: Services, key: TopicPartition) -> DescribeProducersPartitionResponse:
    answer = DescribeProducersPartitionResponse(partition_index=key.partition)
    fault = topic_name_fault(key.topic)
    if fault is not None:
        answer.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        answer.error_message = f"Topic name is invalid: {fault}"
        return answer
    try:
        log = services.replicas.partition(key).log
    except BrokerError as error:
        answer.error_code = error.code
        return answer
    if log.failure is not None:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer
    answer.active_producers = [
        ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.batches[-1].timestamp if entry.batches else entry.last_seen_ms,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_first_offset,
        )
        for entry in log.producers.entries.values()
    ]
    return answer
