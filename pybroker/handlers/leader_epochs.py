"""OffsetForLeaderEpoch: returns the end offset of a leader epoch (KIP-101, KIP-279, KIP-320). As in
Kafka, the current epoch ends at the log end offset, not at the high watermark."""

from __future__ import annotations

import logging

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.handlers.context import Request, Services
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition
from pybroker.replication.authority import NEEDED
from pybroker.wire.messages.list_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from pybroker.yield_every import yield_every

log = logging.getLogger(__name__)


async def handle_offset_for_leader_epoch(
    services: Services, request: Request, message: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    topics = [
        OffsetForLeaderTopicResult(topic=each.topic, partitions=[]) for each in message.topics
    ]
    found = zip(message.topics, topics, strict=True)
    items = ((answer, wanted) for topic, answer in found for wanted in topic.partitions)
    async for answer, wanted in yield_every(items):
        key = TopicPartition(answer.topic, wanted.partition)
        answer.partitions.append(_look_up(services, key, wanted))
    return OffsetForLeaderEpochResponse(topics=topics)


def _look_up(
    services: Services, key: TopicPartition, wanted: OffsetForLeaderPartition
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition, leader_epoch=NO_EPOCH, end_offset=NO_OFFSET)
    try:
        needed = NEEDED["OffsetForLeaderEpoch"]
        partition = services.replicas.leader(key, wanted.current_leader_epoch, needed)
        answer.leader_epoch, answer.end_offset = partition.log.epoch_end_offset(wanted.leader_epoch)
    except BrokerError as error:
        answer.error_code = error.code
    except StorageError as error:
        log.error(
            "OffsetForLeaderEpoch failed, the log cannot be read partition=%s error=%s", key, error
        )
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return answer
