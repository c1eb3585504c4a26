"""DeleteRecords: raises the log start offset of partitions, and deletes the segments below it. A
result without an error means that all live replicas have the new offset. Unless the disk was full,
the result also means that this broker has checkpointed the offset."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.model import INTERNAL_TOPICS, NO_OFFSET, TopicPartition
from pybroker.replication.authority import NEEDED
from pybroker.replication.partition import Partition
from pybroker.wire.messages.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


class _Cut(NamedTuple):
    """A partition, its new log start offset, and its result in the response."""

    partition: Partition
    offset: int
    result: DeleteRecordsPartitionResult


async def handle_delete_records(
    services: Services, request: Request, message: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    deadline = services.clock.monotonic() + max(message.timeout_ms, 0) / 1000
    topics: list[DeleteRecordsTopicResult] = []
    cuts: list[_Cut] = []
    for topic in message.topics:
        answer = DeleteRecordsTopicResult(name=topic.name)
        topics.append(answer)
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(
                partition_index=wanted.partition_index, low_watermark=NO_OFFSET
            )
            answer.partitions.append(result)
            key = TopicPartition(topic.name, wanted.partition_index)
            try:
                cuts.append(_cut(services, key, wanted.offset, result))
            except BrokerError as error:
                result.error_code = error.code
    if cuts:
        await services.replicas.persist_log_starts()
    for cut in cuts:
        _free(services, cut)
    await _wait_for_replicas(services, cuts, deadline)
    return DeleteRecordsResponse(topics=topics)


def _cut(
    services: Services, key: TopicPartition, offset: int, result: DeleteRecordsPartitionResult
) -> _Cut:
    if key.topic in INTERNAL_TOPICS and services.metadata.topic(key.topic) is not None:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Cannot delete records of internal topic {key.topic}",
        )
    partition = services.replicas.leader(key, needed=NEEDED["DeleteRecords"])
    return _Cut(partition, _delete_records(partition, offset), result)


def _delete_records(partition: Partition, wanted: int) -> int:
    """Raise the log start offset to `wanted` (-1: the high watermark), and return the new offset.
    The caller must then write the checkpoints. Raise BrokerError if the cleanup.policy, the log's
    state or the offset forbids the deletion."""
    log, high_watermark = partition.log, partition.high_watermark
    if not log.config.deletes:
        raise BrokerError(
            ErrorCode.POLICY_VIOLATION,
            f"records of {partition.topic_partition} cannot be deleted: the topic's cleanup.policy"
            " does not contain delete",
        )
    if log.failure is not None or log.damage is not None:
        raise BrokerError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"records of {partition.topic_partition} cannot be deleted: the log of the"
            " partition has a corrupt range or is no longer usable",
        )
    offset = high_watermark if wanted == NO_OFFSET else wanted
    if not 0 <= offset <= high_watermark:
        raise BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.topic_partition}: the offset {offset} in the DeleteRecords "
            f"request is not between 0 and the high watermark {high_watermark}",
        )
    log.advance_log_start(offset)
    return offset


def _free(services: Services, cut: _Cut) -> None:
    """Delete the segments below the new log start offset. The caller must first checkpoint the
    offset: otherwise deleted records would reappear after a kill of the broker."""
    log = cut.partition.log
    if not cut.partition.is_leader:
        return
    try:
        now_ms = services.clock.wall_ms()
        log.delete_expired(now_ms, cut.partition.high_watermark, by_age=False)
    except BrokerError as error:
        cut.result.error_code = error.code
    if log.failure is not None:
        cut.result.error_code = ErrorCode.KAFKA_STORAGE_ERROR


async def _wait_for_replicas(services: Services, cuts: list[_Cut], deadline: float) -> None:
    """Wait until all live replicas have the new log start offsets. A partition that misses
    `deadline` (monotonic s) gets REQUEST_TIMED_OUT."""
    for cut in cuts:
        if cut.result.error_code != ErrorCode.NONE:
            continue
        key = cut.partition.topic_partition
        while _low_watermark(services, cut) < cut.offset and cut.partition.is_leader:
            remaining_s = deadline - services.clock.monotonic()
            if remaining_s <= 0:
                cut.result.error_code = ErrorCode.REQUEST_TIMED_OUT
                break
            await services.replicas.deletions.wait([key], missing_bytes=1, timeout_s=remaining_s)
        try:
            if services.replicas.leader(key) is not cut.partition:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        except BrokerError as error:
            cut.result.error_code = error.code
        else:
            cut.result.low_watermark = _low_watermark(services, cut)


def _low_watermark(services: Services, cut: _Cut) -> int:
    """Return the lowest log start offset among the partition's live replicas."""
    return cut.partition.low_watermark(services.metadata.brokers)
