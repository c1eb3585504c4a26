"""Fetch: read each partition from the page cache, or wait until there is something to read.

Fetch sessions (KIP-227) are refused in the polite way: the answer to a full fetch carries session
id 0, so that clients go on with full fetches. Answers hold slices of the log as they are on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.handlers.context import Request, Services
from pybroker.metrics import Metrics
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.partition import Partition
from pybroker.replication.purgatory import Purgatory
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


_ON_LOOP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Copying more than half of this out of the page cache at once would hold up everybody else for too
long; a partition that turns out to give more is read where blocking is allowed."""
_TURN_BYTES_MAX: Final = 2 * 1024 * 1024
_TURN_PARTITIONS_MAX: Final = 500
"""After so much, everybody else has a turn before the next partition is read."""


class _WouldBlock(Exception):
    """A page-cache miss on the event loop, or too much to copy: read where blocking is allowed."""


_Item = tuple[list[PartitionData], TopicPartition, FetchPartition]
"""A partition of the request, and the list that gets its answer."""


@dataclass(slots=True)
class _Reading:
    """One pass over a request's partitions, in the order of the request."""

    items: list[_Item]
    responses: list[FetchableTopicResponse]
    budget_bytes: int
    enough_bytes: int
    read_committed: bool
    version: int
    replica_id: int
    """The follower that asks; negative for a consumer."""
    incarnation: int
    position: int = 0
    """The item that is read next."""
    noted: int = 0
    """In the items before this one it is noted how far the follower is."""
    cached_only: bool = True
    total_bytes: int = 0
    must_answer: bool = False

    @property
    def keys(self) -> list[TopicPartition]:
        return [key for _, key, _ in self.items]


def handle_fetch(
    services: Services, request: Request, message: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    """Answer at once if there is enough, or something to say; else wait and look again."""
    trusted = services.options.inter_broker_listener
    if message.replica_id >= 0 and trusted is not None and request.listener != trusted:
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    full = message.session_epoch in (_INITIAL_SESSION_EPOCH, _FINAL_SESSION_EPOCH)
    if not full:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    seen = _purgatory(services, message).changes
    reading = _begin(services, request, message)
    if _advance(services, reading) and _is_enough(message, reading):
        return _counted(services.metrics, FetchResponse(responses=reading.responses))
    return _read_until_enough(services, request, message, reading, seen)


async def _read_until_enough(
    services: Services, request: Request, message: FetchRequest, reading: _Reading, seen: int
) -> FetchResponse:
    """Wait and read again until there is enough, or the client's patience ends. `reading` was begun
    when `seen` changes had been made; those made since then may not be waited for."""
    fetches, clock = _purgatory(services, message), services.clock
    deadline = clock.monotonic() + message.max_wait_ms / 1000
    while True:
        await _complete(services, reading)
        if _is_enough(message, reading) or clock.monotonic() >= deadline:
            return _counted(services.metrics, FetchResponse(responses=reading.responses))
        reading.responses = []  # who waits holds no records
        if fetches.changes == seen:
            await fetches.wait(
                reading.keys,
                missing_bytes=max(reading.enough_bytes - reading.total_bytes, 1),
                timeout_s=deadline - clock.monotonic(),
            )
        seen = fetches.changes
        reading = _begin(services, request, message)
        reading.noted = len(reading.items)  # what a follower has was said when it asked


def _purgatory(services: Services, message: FetchRequest) -> Purgatory:
    """Where a fetch waits: a follower for the log end, a consumer for the high watermark."""
    replicas = services.replicas
    return replicas.replica_fetches if message.replica_id >= 0 else replicas.fetches


async def _complete(services: Services, reading: _Reading) -> None:
    """Read to the end, in turns; what is not in the page cache where blocking is allowed."""
    while True:
        if not reading.cached_only:
            await services.blocking.run(_read_next, services, reading)
            reading.cached_only = True
        if _advance(services, reading):
            return
        if reading.cached_only:
            await asyncio.sleep(0)


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


def _begin(services: Services, request: Request, message: FetchRequest) -> _Reading:
    """A pass that has read nothing yet. The first partition that has data gives at least one whole
    batch, even above the limits (KIP-74)."""
    options = services.options
    room_bytes = max(options.unsent_bytes_max - services.unsent_bytes(), 0)
    budget_bytes = min(message.max_bytes, room_bytes)
    if message.replica_id < 0:
        budget_bytes = min(budget_bytes, options.fetch_bytes_max)
    responses, items = [], []
    for topic in message.topics:
        answers: list[PartitionData] = []
        responses.append(FetchableTopicResponse(topic=topic.topic, partitions=answers))
        items += [
            (answers, TopicPartition(topic.topic, wanted.partition), wanted)
            for wanted in topic.partitions
        ]
    return _Reading(
        items=items,
        responses=responses,
        budget_bytes=budget_bytes,
        # As in Kafka, nobody waits for more than fits into the answer.
        enough_bytes=min(message.min_bytes, max(budget_bytes, 1)),
        read_committed=message.isolation_level == _READ_COMMITTED,
        version=request.version,
        replica_id=message.replica_id,
        incarnation=message.replica_incarnation,
    )


def _advance(services: Services, reading: _Reading) -> bool:
    """Go on from the page cache. False if the pass is not at its end: `cached_only` of it is unset
    if the next partition has to be read where blocking is allowed, else others have to have their
    turn."""
    begun, bytes_max = reading.position, reading.total_bytes + _TURN_BYTES_MAX
    while reading.position < len(reading.items):
        if reading.position - begun >= _TURN_PARTITIONS_MAX or reading.total_bytes >= bytes_max:
            return False
        try:
            _read_next(services, reading)
        except _WouldBlock:
            reading.cached_only = False
            return False
    return True


def _read_next(services: Services, reading: _Reading) -> None:
    answers, key, wanted = reading.items[reading.position]
    answers.append(_read_partition(services, key, wanted, reading))
    reading.position += 1


def _read_partition(
    services: Services, key: TopicPartition, wanted: FetchPartition, reading: _Reading
) -> PartitionData:
    answer = PartitionData(
        partition_index=wanted.partition,
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
    )
    try:
        partition = services.replicas.leader(key, wanted.current_leader_epoch)
        if partition.log.config.compression_type == "zstd":
            _require_zstd(reading.version)
        diverging = None
        if wanted.last_fetched_epoch != NO_EPOCH:
            diverging = _diverging_epoch(partition, wanted)
        if reading.replica_id >= 0 and diverging is None:
            _note_follower(services, partition, wanted, reading)
        answer.high_watermark = partition.high_watermark
        answer.last_stable_offset = partition.last_stable_offset()
        answer.log_start_offset = partition.log.log_start_offset
        if diverging is None:
            _read_records(partition, wanted, answer, reading)
        else:
            answer.diverging_epoch = diverging
            reading.must_answer = True
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
    if reading.replica_id >= 0:
        end = partition.log.log_end_offset
    else:
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
    if reading.cached_only and len(data) > _ON_LOOP_BYTES_MAX // 2:
        raise _WouldBlock
    answer.records = data
    if reading.read_committed:
        answer.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in partition.log.aborted_transactions(wanted.fetch_offset, end)
        ]
    reading.total_bytes += len(data)
    reading.budget_bytes -= len(data)


def _note_follower(
    services: Services, partition: Partition, wanted: FetchPartition, reading: _Reading
) -> None:
    """Take down how far the follower is: once a request, before the request waits. On the event
    loop, where every item is looked at first. Raises BrokerError for what may not count."""
    if reading.position < reading.noted:
        return
    reading.noted = reading.position + 1
    if wanted.current_leader_epoch == NO_EPOCH:
        raise BrokerError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{partition.topic_partition}: the follower does not say in which epoch it follows",
        )
    log = partition.log
    if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
        return  # out of range, as the read will say
    services.replicas.follower_fetched(
        partition,
        FollowerFetch(
            reading.replica_id, wanted.fetch_offset, wanted.log_start_offset, reading.incarnation
        ),
        services.clock.monotonic(),
    )


def _diverging_epoch(partition: Partition, wanted: FetchPartition) -> DivergingEpoch | None:
    """Where the reader's last epoch ends here, if that is before where it wants to go on
    (KIP-595). Raises BrokerError OFFSET_OUT_OF_RANGE if that cannot be said."""
    epoch, end_offset = partition.log.epoch_end_offset(wanted.last_fetched_epoch)
    if end_offset == NO_OFFSET:
        raise BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.topic_partition} holds nothing of epoch {wanted.last_fetched_epoch}",
        )
    if wanted.fetch_offset < partition.log.log_start_offset:
        return None  # out of range, as the read will say
    if epoch >= wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
        return None
    return DivergingEpoch(epoch=epoch, end_offset=end_offset)


def _require_zstd(version: int) -> None:
    if version < _FIRST_VERSION_WITH_ZSTD:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the topic is compressed with zstd, which Fetch version {version} cannot read",
        )
