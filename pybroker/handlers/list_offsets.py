"""ListOffsets: returns, for each partition, the offset of the requested timestamp (ms, or a
negative number as in Kafka). A new leader returns OFFSET_NOT_AVAILABLE for the end of the partition
until the high watermark reaches the start of the leader epoch: consumers must not see the end go
backwards (KIP-207)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.handlers.context import Request, Services
from pybroker.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from pybroker.replication.authority import NEEDED, Authority
from pybroker.replication.partition import Partition
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pybroker.yield_every import yield_every

log = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
_NEED_THE_END = (LATEST, MAX_TIMESTAMP)
_END = "ListOffsets of the log end without a check in ZooKeeper"
_END_CONFIRMED = "ListOffsets of the log end after a check in ZooKeeper"
_READ_COMMITTED = 1
_CONSUMER = -1
"""The replica id in the request of a consumer. Any other id is a follower's broker id."""
_FIRST_VERSION_WITH_NOT_AVAILABLE = 5
_FIRST_VERSION_WITH_MAX_TIMESTAMP = 7

_Found = tuple[int, int, int]
"""The result for a partition: offset, timestamp (ms), leader epoch."""
_EndOf = Callable[[Partition], int]
"""Returns the end of a partition's log up to which the client of the request may read."""


async def handle_list_offsets(
    services: Services, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse:
    end: _EndOf = _log_end
    if message.replica_id == _CONSUMER:
        committed = message.isolation_level == _READ_COMMITTED
        end = _stable_end if committed else _committed_end
    seen: set[TopicPartition] = set()
    repeated: set[TopicPartition] = set()
    for topic in message.topics:
        for wanted in topic.partitions:
            key = TopicPartition(topic.name, wanted.partition_index)
            (repeated if key in seen else seen).add(key)
    lead_now = await _lead_now(services, message, repeated)
    topics = [ListOffsetsTopicResponse(name=each.name, partitions=[]) for each in message.topics]
    found = zip(message.topics, topics, strict=True)
    items = ((answers, wanted) for topic, answers in found for wanted in topic.partitions)
    async for answers, wanted in yield_every(items):
        key = TopicPartition(answers.name, wanted.partition_index)
        if key in repeated:
            answer = _failed(wanted, ErrorCode.INVALID_REQUEST)
        else:
            asked = _END_CONFIRMED if key in lead_now else _END
            answer = await _look_up(services, request, key, wanted, end, NEEDED[asked])
        answers.partitions.append(answer)
    return ListOffsetsResponse(topics=topics)


async def _look_up(
    services: Services,
    request: Request,
    key: TopicPartition,
    wanted: ListOffsetsPartition,
    end: _EndOf,
    for_the_end: Authority,
) -> ListOffsetsPartitionResponse:
    found: _Found | None
    try:
        needed = NEEDED["ListOffsets of the log start or of a timestamp in the log"]
        partition = services.replicas.leader(key, wanted.current_leader_epoch, needed)
        _check_special_time(wanted.timestamp, request.version)
        if wanted.timestamp in _NEED_THE_END:
            services.replicas.require(partition, for_the_end)
        if wanted.timestamp in (LATEST, EARLIEST):
            found = _end_of_log(partition, wanted.timestamp, end)
        else:
            found = await _search(services, partition, wanted.timestamp, end, for_the_end)
    except BrokerError as error:
        code = error.code
        if (
            code is ErrorCode.OFFSET_NOT_AVAILABLE
            and request.version < _FIRST_VERSION_WITH_NOT_AVAILABLE
        ):
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return _failed(wanted, code)
    except StorageError as error:
        log.error("ListOffsets failed, the log cannot be read partition=%s error=%s", key, error)
        return _failed(wanted, ErrorCode.KAFKA_STORAGE_ERROR)
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    if request.version == 0:
        answer.old_style_offsets = [] if found is None else [found[0]][: wanted.max_num_offsets]
        return answer
    if found is not None:
        answer.offset, answer.timestamp, answer.leader_epoch = found
    return answer


async def _lead_now(
    services: Services, message: ListOffsetsRequest, excluded: Container[TopicPartition]
) -> Collection[TopicPartition]:
    """Return the requested partitions that this broker still leads according to ZooKeeper. A
    partition is checked only if its authority is CONFIRMED: the partition's log end must not be
    returned without the check. Requests for the log start, and partitions in `excluded`, are
    skipped."""
    replicas, doubted = services.replicas, []
    for topic in message.topics:
        for wanted in topic.partitions:
            key = TopicPartition(topic.name, wanted.partition_index)
            partition = replicas.partitions.get(key)
            if (
                partition is not None
                and key not in excluded
                and wanted.timestamp != EARLIEST
                and replicas.authority(partition, replicas.lease, NEEDED[_END])
                is NEEDED[_END_CONFIRMED]
            ):
                doubted.append(partition)
    return await services.lead_now(doubted) if doubted else ()


def _check_special_time(timestamp: int, version: int) -> None:
    if timestamp >= EARLIEST:
        return
    if timestamp == MAX_TIMESTAMP and version >= _FIRST_VERSION_WITH_MAX_TIMESTAMP:
        return
    raise BrokerError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"special timestamp {timestamp} is not supported in ListOffsets version {version}",
    )


def _log_end(partition: Partition) -> int:
    return partition.log.log_end_offset


def _committed_end(partition: Partition) -> int:
    return partition.readable_end(False)


def _stable_end(partition: Partition) -> int:
    return partition.readable_end(True)


def _require_known(partition: Partition, end: _EndOf) -> None:
    if end is not _log_end and partition.high_watermark < partition.epoch_start:
        raise BrokerError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"{partition.topic_partition}: the high watermark {partition.high_watermark} is below "
            f"the start of the leader epoch, {partition.epoch_start}",
        )


def _end_of_log(partition: Partition, which: int, end: _EndOf) -> _Found:
    if which == LATEST:
        _require_known(partition, end)
        return end(partition), NO_TIMESTAMP, partition.leader_epoch
    start = partition.log.log_start_offset
    return start, NO_TIMESTAMP, partition.log.epoch_of(start)


async def _search(
    services: Services, partition: Partition, timestamp: int, end_of: _EndOf, for_the_end: Authority
) -> _Found | None:
    """Return the record below `end_of(partition)` that `timestamp` asks for, or None. Raise
    BrokerError NOT_LEADER_OR_FOLLOWER if the leadership is lost meanwhile. Before returning None,
    make the checks of a request for the end offset, because the log of another leader may have such
    a record. These checks may raise BrokerError."""
    end = end_of(partition)

    def search() -> _Found | None:
        if timestamp == MAX_TIMESTAMP:
            return partition.log.offset_of_max_timestamp(end)
        return partition.log.offset_for_timestamp(timestamp, end)

    try:
        found = await services.blocking.run(search)
    except (BrokerError, StorageError):
        key = partition.topic_partition
        if services.replicas.leader(key) is not partition:
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker's replica of {key} was closed, or lost the leadership, "
                "while this broker searched the log for the timestamp",
            ) from None
        raise
    if found is None:  # another leader may have a record that this log lacks
        services.replicas.require(partition, for_the_end)
        _require_known(partition, end_of)
    return found


def _failed(wanted: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=code,
        timestamp=NO_TIMESTAMP,
        offset=NO_OFFSET,
        leader_epoch=NO_EPOCH,
    )
