"""Fetch: read each partition from the page cache, or wait until there is something to read.

Fetch sessions (KIP-227) are refused in the polite way: the answer to a full fetch carries session
id 0, so that clients go on with full fetches. Answers hold slices of the log as they are on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.handlers.context import Request, Services
from pybroker.metrics import Metrics
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition
from pybroker.replication.partition import Partition
from pybroker.wire.messages.fetch import (
    AbortedTransaction,
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

log = logging.getLogger(__name__)

_READ_COMMITTED = 1
_FIRST_VERSION_WITH_ZSTD = 10
_FINAL_SESSION_EPOCH = -1
_INITIAL_SESSION_EPOCH = 0


_ON_LOOP_BYTES_MAX = 4 * 1024 * 1024
"""Copying more than half of this out of the page cache would hold up everybody else for too long;
an answer that turns out to be larger is read again where blocking is allowed."""


class _WouldBlock(Exception):
    """A page-cache miss on the event loop, or too much to copy: read where blocking is allowed."""


@dataclass(slots=True)
class _Reading:
    """The state of one pass over a request's partitions."""

    cached_only: bool
    budget_bytes: int
    enough_bytes: int
    read_committed: bool
    version: int
    total_bytes: int = 0
    must_answer: bool = False
    keys: list[TopicPartition] = field(default_factory=list)


def handle_fetch(
    services: Services, request: Request, message: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    """Answer at once if there is enough, or something to say; else wait and look again."""
    full = message.session_epoch in (_INITIAL_SESSION_EPOCH, _FINAL_SESSION_EPOCH)
    if not full:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    seen = services.replicas.fetches.changes
    try:
        reading, response = _read_all(services, request, message, cached_only=True)
    except _WouldBlock:
        return _read_until_enough(services, request, message, None, seen)
    if _is_enough(message, reading):
        return _counted(services.metrics, response)
    return _read_until_enough(services, request, message, reading, seen)


async def _read_until_enough(
    services: Services, request: Request, message: FetchRequest, reading: _Reading | None, seen: int
) -> FetchResponse:
    """Wait and read again until there is enough, or the client's patience ends. `reading` is what
    was found when `seen` changes had been made; those made since then may not be waited for."""
    fetches, clock = services.replicas.fetches, services.clock
    deadline = clock.monotonic() + message.max_wait_ms / 1000
    while True:
        if reading is None or fetches.changes != seen:
            seen = fetches.changes
            reading, response = await _read(services, request, message)
            if _is_enough(message, reading) or clock.monotonic() >= deadline:
                return _counted(services.metrics, response)
            del response  # who waits holds no records
            if fetches.changes != seen:
                continue
        await fetches.wait(
            reading.keys,
            missing_bytes=max(reading.enough_bytes - reading.total_bytes, 1),
            timeout_s=deadline - clock.monotonic(),
        )
        reading = None


async def _read(
    services: Services, request: Request, message: FetchRequest
) -> tuple[_Reading, FetchResponse]:
    """From the page cache, or where blocking is allowed."""
    try:
        return _read_all(services, request, message, cached_only=True)
    except _WouldBlock:
        read = partial(_read_all, services, request, message, cached_only=False)
        return await services.blocking.run(read)


def _counted(metrics: Metrics, response: FetchResponse) -> FetchResponse:
    """The answer, when it is certain that it is the one."""
    for topic in response.responses:
        counters = metrics.counters(topic.topic)
        counters.fetch_requests += len(topic.partitions)
        for part in topic.partitions:
            if part.records:
                counters.bytes_out += len(part.records)
            elif part.error_code:
                counters.failed_fetch_requests += 1
    return response


def _is_enough(message: FetchRequest, reading: _Reading) -> bool:
    return (
        reading.must_answer
        or reading.total_bytes >= reading.enough_bytes
        or message.max_wait_ms <= 0
        or not reading.keys
    )


def _read_all(
    services: Services, request: Request, message: FetchRequest, *, cached_only: bool
) -> tuple[_Reading, FetchResponse]:
    """One pass in the order of the request. The first partition that has data gives at least one
    whole batch, even above the limits (KIP-74)."""
    options = services.options
    room_bytes = max(options.unsent_bytes_max - services.unsent_bytes(), 0)
    budget_bytes = min(message.max_bytes, options.fetch_bytes_max, room_bytes)
    reading = _Reading(
        cached_only=cached_only,
        budget_bytes=budget_bytes,
        # As in Kafka, nobody waits for more than fits into the answer.
        enough_bytes=min(message.min_bytes, max(budget_bytes, 1)),
        read_committed=message.isolation_level == _READ_COMMITTED,
        version=request.version,
    )
    responses = []
    for topic in message.topics:
        answered = [
            _read_partition(services.replicas.leader, topic.topic, wanted, reading)
            for wanted in topic.partitions
        ]
        responses.append(FetchableTopicResponse(topic=topic.topic, partitions=answered))
    return reading, FetchResponse(responses=responses)


def _read_partition(
    leader: Callable[[TopicPartition, int], Partition],
    topic: str,
    wanted: FetchPartition,
    reading: _Reading,
) -> PartitionData:
    key = TopicPartition(topic, wanted.partition)
    answer = PartitionData(
        partition_index=wanted.partition,
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
    )
    reading.keys.append(key)
    try:
        partition = leader(key, wanted.current_leader_epoch)
        if partition.log.config.compression_type == "zstd":
            _require_zstd(reading.version)
        answer.high_watermark = partition.high_watermark
        answer.last_stable_offset = partition.last_stable_offset()
        answer.log_start_offset = partition.log.log_start_offset
        if _diverges(partition, wanted, answer):
            reading.must_answer = True
        else:
            _read_records(partition, wanted, answer, reading)
    except BrokerError as error:
        answer.error_code = error.code
        reading.must_answer = True
    except StorageError as error:
        log.error("read failed partition=%s error=%s", key, error)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        reading.must_answer = True
    return answer


def _read_records(
    partition: Partition, wanted: FetchPartition, answer: PartitionData, reading: _Reading
) -> None:
    end = partition.readable_end(reading.read_committed)
    first = reading.total_bytes == 0
    limit_bytes = max(min(wanted.partition_max_bytes, reading.budget_bytes), 0)
    if reading.cached_only:
        limit_bytes = min(limit_bytes, _ON_LOOP_BYTES_MAX)
    data = partition.log.read(
        wanted.fetch_offset,
        limit_bytes,
        upper_offset=end,
        at_least_one_batch=first,
        cached_only=reading.cached_only,
    )
    if data is None:
        raise _WouldBlock
    if reading.cached_only and reading.total_bytes + len(data) > _ON_LOOP_BYTES_MAX // 2:
        raise _WouldBlock
    answer.records = data
    if reading.read_committed:
        answer.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in partition.log.aborted_transactions(wanted.fetch_offset, end)
        ]
    reading.total_bytes += len(data)
    reading.budget_bytes -= len(data)


def _diverges(partition: Partition, wanted: FetchPartition, answer: PartitionData) -> bool:
    """Whether the reader's last epoch ends earlier here than where it wants to go on (KIP-595)."""
    if wanted.last_fetched_epoch == NO_EPOCH:
        return False
    epoch, end_offset = partition.log.epoch_end_offset(wanted.last_fetched_epoch)
    if end_offset == NO_OFFSET:
        raise BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.topic_partition} holds nothing of epoch {wanted.last_fetched_epoch}",
        )
    if epoch >= wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
        return False
    answer.diverging_epoch = DivergingEpoch(epoch=epoch, end_offset=end_offset)
    return True


def _require_zstd(version: int) -> None:
    if version < _FIRST_VERSION_WITH_ZSTD:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the topic is compressed with zstd, which Fetch version {version} cannot read",
        )
