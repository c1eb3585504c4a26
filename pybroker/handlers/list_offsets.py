"""ListOffsets: the first, last, or a searched offset of each partition.

-1 is the end that the isolation level may read up to, -2 the log start, -3 the record with the
largest timestamp (version 7); other numbers look for the first record at or after that time, in ms.
Special times of later versions are not ours to answer.
"""

from __future__ import annotations

import logging

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.handlers.context import Request, Services
from pybroker.handlers.turns import Turns
from pybroker.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from pybroker.replication.partition import Partition
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

log = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
_READ_COMMITTED = 1
_FIRST_VERSION_WITH_MAX_TIMESTAMP = 7

_Found = tuple[int, int, int]
"""offset, timestamp, leader epoch"""


async def handle_list_offsets(
    services: Services, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse:
    read_committed = message.isolation_level == _READ_COMMITTED
    topics = []
    turns = Turns()
    seen: set[TopicPartition] = set()
    repeated: set[TopicPartition] = set()
    for topic in message.topics:
        for wanted in topic.partitions:
            key = TopicPartition(topic.name, wanted.partition_index)
            (repeated if key in seen else seen).add(key)
    for topic in message.topics:
        partitions = []
        for wanted in topic.partitions:
            key = TopicPartition(topic.name, wanted.partition_index)
            if key in repeated:
                answer = _failed(wanted, ErrorCode.INVALID_REQUEST)
            else:
                answer = await _look_up(services, request, key, wanted, read_committed)
            partitions.append(answer)
            await turns.item()
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


async def _look_up(
    services: Services,
    request: Request,
    key: TopicPartition,
    wanted: ListOffsetsPartition,
    read_committed: bool,
) -> ListOffsetsPartitionResponse:
    found: _Found | None
    try:
        partition = services.replicas.leader(key, wanted.current_leader_epoch)
        _check_special_time(wanted.timestamp, request.version)
        if wanted.timestamp in (LATEST, EARLIEST):
            found = _end_of_log(partition, wanted.timestamp, read_committed)
        else:
            found = await _search(services, partition, wanted.timestamp, read_committed)
    except BrokerError as error:
        return _failed(wanted, error.code)
    except StorageError as error:
        log.error("search failed partition=%s error=%s", key, error)
        return _failed(wanted, ErrorCode.KAFKA_STORAGE_ERROR)
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    if request.version == 0:
        answer.old_style_offsets = [] if found is None else [found[0]][: wanted.max_num_offsets]
        return answer
    if found is not None:
        answer.offset, answer.timestamp, answer.leader_epoch = found
    return answer


def _check_special_time(timestamp: int, version: int) -> None:
    if timestamp >= EARLIEST:
        return
    if timestamp == MAX_TIMESTAMP and version >= _FIRST_VERSION_WITH_MAX_TIMESTAMP:
        return
    raise BrokerError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"timestamp {timestamp} has no meaning in ListOffsets version {version}",
    )


def _end_of_log(partition: Partition, which: int, read_committed: bool) -> _Found:
    if which == LATEST:
        return partition.readable_end(read_committed), NO_TIMESTAMP, partition.leader_epoch
    start = partition.log.log_start_offset
    return start, NO_TIMESTAMP, partition.log.epoch_of(start)


async def _search(
    services: Services, partition: Partition, timestamp: int, read_committed: bool
) -> _Found | None:
    """Not on the event loop: the index and a part of the log may have to come from the disk. If
    the partition goes meanwhile, that is the answer, not that its files are gone."""
    end = partition.readable_end(read_committed)

    def search() -> _Found | None:
        if timestamp == MAX_TIMESTAMP:
            return partition.log.offset_of_max_timestamp(end)
        return partition.log.offset_for_timestamp(timestamp, end)

    try:
        return await services.blocking.run(search)
    except (BrokerError, StorageError):
        key = partition.topic_partition
        if services.replicas.leader(key) is not partition:
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not the partition that it was"
            ) from None
        raise


def _failed(wanted: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=code,
        timestamp=NO_TIMESTAMP,
        offset=NO_OFFSET,
        leader_epoch=NO_EPOCH,
    )
