"""Reads the partitions of a Fetch request: the event loop reads from the page cache, a thread from
the disk. Also notes the fetch offsets of a follower."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.handlers.context import Services
from pybroker.handlers.fetch_sessions import CachedPartition
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition
from pybroker.ports import Buffer
from pybroker.replication.authority import NEEDED
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.partition import Partition
from pybroker.storage import scrub
from pybroker.storage.reading import NotCached
from pybroker.wire.messages.fetch import (
    AbortedTransaction,
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    PartitionData,
)

log = logging.getLogger(__name__)

# The authority that a fetch needs (`Authority`), looked up here once and not for each partition.
_FETCH: Final = min(
    NEEDED["Fetch by a follower"],
    NEEDED["Fetch by a consumer, until the broker's metadata names the new leader"],
)
_BEYOND_THE_END: Final = NEEDED["Fetch by a consumer from an offset above the log end"]
_LED_ELSEWHERE: Final = NEEDED["Fetch by a consumer, whatever leader the broker's metadata names"]
TURN_PARTITIONS_MAX: Final = 500
_FIRST_VERSION_WITH_ZSTD = 10
_ON_LOOP_BYTES_MAX: Final = 4 * 1024 * 1024
"""The maximum size (bytes) of a read of one partition on the event loop. If the read returns more
than half of this, the result is discarded, and a thread reads the partition: the event loop would
be blocked for too long by such results."""
_TURN_BYTES_MAX: Final = 2 * 1024 * 1024
"""After reading this many bytes, or TURN_PARTITIONS_MAX partitions, a pass yields to the event
loop."""


class _WouldBlock(Exception):
    """Raised on the event loop if a thread has to read the partition."""


Item = tuple[list[PartitionData], TopicPartition, FetchPartition]
"""A partition of a full request: the list to which its result is appended, the partition, and its
part of the request."""


@dataclass(slots=True)
class Reading:
    """One pass over the partitions of a Fetch request. An incremental request is read in the order
    of the fetch session, a full request in its own order."""

    version: int
    items: Sequence[Item]
    cached: Sequence[CachedPartition] | None
    """The partitions of an incremental request that have to be read (the pending ones of its
    session). `items` is then empty. None for a full request."""
    count: int
    """The number of partitions in `items` or `cached`."""
    responses: list[FetchableTopicResponse]
    given: list[tuple[CachedPartition, PartitionData]]
    """The results of an incremental request that are sent to the client, each with its
    partition."""
    follower: FetchRequest | None
    """The request if a follower sent it; None if a consumer sent it."""
    committed_only: bool
    budget_bytes: int
    enough_bytes: int
    now_s: float
    """When the follower's request arrived (monotonic s)."""
    position: int = 0
    """The index of the partition that is read next."""
    noted: int = 0
    """For the partitions before this index, the follower's fetch offsets have been recorded at the
    leader."""
    cached_only: bool = True
    total_bytes: int = 0
    must_answer: bool = False


def advance(services: Services, reading: Reading) -> bool:
    """Read the next partitions from the page cache. Return True if all partitions are read.
    Otherwise the caller must call `advance` again. If `reading.cached_only` is False, a thread must
    first read the next partition. If it is True, the caller must first yield to the event loop."""
    count, begun = reading.count, reading.position
    bytes_max = reading.total_bytes + _TURN_BYTES_MAX
    read_next = _read_next if reading.cached is None else _read_next_of_session
    while reading.position < count:
        if reading.position - begun >= TURN_PARTITIONS_MAX or reading.total_bytes >= bytes_max:
            return False
        try:
            read_next(services, reading)
        except _WouldBlock:
            reading.cached_only = False
            return False
    return True


async def complete(services: Services, reading: Reading) -> None:
    """Read all remaining partitions. A thread reads the partitions whose records are not in the
    page cache."""
    read_next = _read_next if reading.cached is None else _read_next_of_session
    while True:
        if not reading.cached_only:
            await services.blocking.run(read_next, services, reading)
            reading.cached_only = True
        if advance(services, reading):
            return
        if reading.cached_only:
            await asyncio.sleep(0)


def _read_next(services: Services, reading: Reading) -> None:
    answers, key, wanted = reading.items[reading.position]
    answers.append(_read_partition(services, key, wanted, reading))
    reading.position += 1


def _read_next_of_session(services: Services, reading: Reading) -> None:
    assert reading.cached is not None
    cached = reading.cached[reading.position]
    if not _is_unchanged(services, cached, reading):
        key = cached.key
        answer = _read_partition(services, key, cached.wanted, reading)
        if answer.error_code == 0 and answer.diverging_epoch is None:
            cached.verified_epoch = cached.wanted.current_leader_epoch
        if cached.is_news(answer):
            reading.given.append((cached, answer))
            topics = reading.responses
            if not topics or topics[-1].topic != key.topic:
                topics.append(FetchableTopicResponse(topic=key.topic))
            topics[-1].partitions.append(answer)
    reading.position += 1


def _is_unchanged(services: Services, cached: CachedPartition, reading: Reading) -> bool:
    """Return True only if the partition has nothing new for the client. The session then usually
    watches the partition: the next fetches of the session skip the partition until it changes. The
    partition of a follower outside the ISR is not watched, because each fetch of that follower has
    to be recorded."""
    partition = services.replicas.partitions.get(cached.key)
    if partition is None:
        return False
    wanted, log_ = cached.wanted, partition.log
    offset, end = wanted.fetch_offset, log_.log_end_offset
    epoch = wanted.current_leader_epoch
    follower, is_noted = reading.follower, True
    if (
        offset > end
        or (offset != end and follower is not None)
        or partition.granted < _LED_ELSEWHERE
        or services.replicas.lease < _LED_ELSEWHERE
        or (epoch != partition.leader_epoch and epoch != NO_EPOCH)
        or (wanted.last_fetched_epoch != NO_EPOCH and not 0 <= cached.verified_epoch == epoch)
        or log_.log_start_offset != cached.log_start_offset
        or log_.damage is not None
    ):
        return False
    if follower is None:
        if partition.readable_end(reading.committed_only) > offset:
            return False
    else:
        # A fetch is noted in its first pass. Only then may the session repeat it. A follower that
        # is not in the ISR may join at any of its fetches, so each one is noted.
        is_noted = reading.position >= reading.noted
        if is_noted:
            try:
                _note_follower(services, partition, wanted, follower, reading)
            except BrokerError:
                return False
            is_noted = partition.is_in_isr(follower.replica_id)
    if partition.high_watermark != cached.high_watermark:
        return False
    if is_noted:
        cached.watch(partition)
    return True


def _read_partition(
    services: Services, key: TopicPartition, wanted: FetchPartition, reading: Reading
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
        partition = services.replicas.leader(key, wanted.current_leader_epoch, _FETCH)
        if partition.log.config.compression_type == "zstd":
            _require_zstd(reading.version)
        diverging = None
        if wanted.last_fetched_epoch != NO_EPOCH:
            diverging = _diverging_epoch(partition, wanted)
        if reading.follower is None and wanted.fetch_offset > partition.log.log_end_offset:
            # Another leader may have that offset. After OFFSET_OUT_OF_RANGE a consumer would reset.
            services.replicas.require(partition, _BEYOND_THE_END)
        if (
            reading.follower is None
            and partition.granted < _LED_ELSEWHERE
            and services.metadata.is_led_after(key, partition.leader_epoch)
        ):  # only the later leader has the next records
            services.replicas.require(partition, _LED_ELSEWHERE)
        if reading.follower is not None and diverging is None:
            _note_follower(services, partition, wanted, reading.follower, reading)
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
        if error.code is ErrorCode.CORRUPT_MESSAGE:
            services.replicas.on_suspicion(key, wanted.fetch_offset)
    except StorageError as error:
        log.error("fetch failed, the log cannot be read partition=%s error=%s", key, error)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        reading.must_answer = True
    return answer


def _read_records(
    partition: Partition, wanted: FetchPartition, answer: PartitionData, reading: Reading
) -> None:
    if reading.follower is None:
        end = partition.readable_end(reading.committed_only)
    else:
        end = partition.log.log_end_offset
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
    # A follower checks batches itself. Only for one that is stuck at a corrupt batch, check here.
    if data and (reading.follower is None or partition.is_stuck(reading.follower.replica_id)):
        data, end = _whole(partition, wanted.fetch_offset, data, end)
    if reading.committed_only:
        answer.aborted_transactions = []
        if data:
            _list_aborted(partition, wanted.fetch_offset, end, answer, reading.cached_only)
    answer.records = data
    reading.total_bytes += len(data)
    reading.budget_bytes -= len(data)


def _list_aborted(
    partition: Partition, offset: int, end: int, answer: PartitionData, cached_only: bool
) -> None:
    """List in `answer` the aborted transactions with records in [offset, end)."""
    try:
        found = partition.log.aborted_transactions(offset, end, cached_only=cached_only)
    except NotCached:
        raise _WouldBlock from None
    if offset < partition.log.first_base_offset:  # the index may have been deleted meanwhile
        raise BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.topic_partition}: offset {offset} was deleted during the read",
        )
    answer.aborted_transactions = [
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in found
    ]


def _whole(partition: Partition, offset: int, data: Buffer, end: int) -> tuple[Buffer, int]:
    """Return the batches of `data` before the first corrupt one, and the offset after these
    batches. Raise BrokerError CORRUPT_MESSAGE if the first batch is corrupt."""
    whole = scrub.whole(data, end_offset=end)
    if whole.position == len(data):
        return data, whole.next_offset
    if whole.position:
        return memoryview(data)[: whole.position], whole.next_offset
    raise BrokerError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{partition.topic_partition}: the batch at offset {offset} is corrupt",
    )


def _note_follower(
    services: Services,
    partition: Partition,
    wanted: FetchPartition,
    follower: FetchRequest,
    reading: Reading,
) -> None:
    """Record the follower's fetch at the leader. Must run on the event loop. Raise BrokerError if
    the fetch has no leader epoch, or if the requesting broker has no replica of the partition."""
    if reading.position < reading.noted:
        return
    if wanted.current_leader_epoch == NO_EPOCH:
        raise BrokerError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{partition.topic_partition}: the follower's Fetch request has no "
            "current leader epoch",
        )
    log = partition.log
    if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
        return  # out of range: the read returns the error
    services.replicas.follower_fetched(
        partition,
        FollowerFetch(
            follower.replica_id,
            wanted.fetch_offset,
            wanted.log_start_offset,
            follower.replica_incarnation,
        ),
        reading.now_s,
    )
    reading.noted = reading.position + 1


def _diverging_epoch(partition: Partition, wanted: FetchPartition) -> DivergingEpoch | None:
    """Return None if the reader's log agrees with the leader's log. Otherwise return the leader's
    largest epoch that is not above the reader's last epoch, with its end offset (KIP-595). Raise
    BrokerError OFFSET_OUT_OF_RANGE if the reader's last epoch is above all epochs of the leader."""
    epoch, end_offset = partition.log.epoch_end_offset(wanted.last_fetched_epoch)
    if end_offset == NO_OFFSET:
        raise BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition.topic_partition}: the last record of the reader has leader "
            f"epoch {wanted.last_fetched_epoch}, but all leader epochs in the "
            "leader's log are lower",
        )
    if wanted.fetch_offset < partition.log.log_start_offset:
        return None  # out of range: the read returns the error
    if epoch >= wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
        return None
    return DivergingEpoch(epoch=epoch, end_offset=end_offset)


def _require_zstd(version: int) -> None:
    if version < _FIRST_VERSION_WITH_ZSTD:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the topic has compression.type=zstd, and Fetch version {version} cannot "
            "return batches that are compressed with zstd: use version "
            f"{_FIRST_VERSION_WITH_ZSTD} or above",
        )
