"""DeleteRecords: the log start offset of partitions moves up, and the segments below it are
deleted.

One result for each partition of the request, in its order. A success means that all live replicas
have the new log start, and that it is durable on this broker: deleted records do not come back. The
exception is a full disk. The deletion of segments must first make room for the checkpoint with the
new log start. A kill before that brings back the rest of a segment.
"""

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
    """A partition with a new log start, the requested offset, and the result to fill in."""

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
    return _Cut(partition, partition.delete_records(offset), result)


def _free(services: Services, cut: _Cut) -> None:
    """Delete the segments that lie wholly below the new log start. The new start is on the disk
    before that, or a kill in between would bring deleted records back. If another broker leads by
    now, a thread may be truncating the log, so the next retention deletes the segments."""
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
    """Wait until all live replicas have the new log start. A partition that is too late gets
    REQUEST_TIMED_OUT."""
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
    """The lowest log start of the live replicas. A broker that is down does not delay a deletion:
    it takes the log start of the leader when it is back."""
    return cut.partition.low_watermark(services.metadata.brokers)
