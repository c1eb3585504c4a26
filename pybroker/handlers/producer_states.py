"""DescribeProducers: which producers a replica remembers (KIP-664). Any replica may be asked."""

from __future__ import annotations

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


async def handle_describe_producers(
    services: Services, request: Request, message: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersTopicResponse(
                name=topic.name,
                partitions=[
                    _describe(services, TopicPartition(topic.name, number))
                    for number in topic.partition_indexes
                ],
            )
            for topic in message.topics
        ]
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
