"""Produce: check each batch, append it, and answer when `acks` is satisfied.

Every partition of the request gets its own result; one that fails does not hold up the others. With
acks=0 there is no answer, and a failure closes the connection, as the client could not be told
otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import NamedTuple

from pybroker.errors import BrokerError, CloseConnection, ErrorCode, StorageError
from pybroker.handlers.context import Request, Services
from pybroker.model import INTERNAL_TOPICS, TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader
from pybroker.records.refusals import RecordsRefused
from pybroker.records.validate import has_to_decompress, stored_form, validate_produced
from pybroker.replication.authority import NEEDED
from pybroker.replication.partition import Partition
from pybroker.storage.log_parts import AppendResult
from pybroker.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

log = logging.getLogger(__name__)

_FIRST_VERSION_WITH_BATCHES = 3
_ADMIN_CLIENT_ID = "__admin_client"
"""Who calls itself so may write to internal topics, as in Kafka."""


class _Waiting(NamedTuple):
    """A batch that is written but may not be acknowledged yet."""

    partition: Partition
    leading_since: int
    """As of the partition when it was written: in another leadership it may have been given up."""
    end_offset: int
    """What must be committed (acks=all), or as durable as the topic wants it (acks=1)."""
    acks: int
    result: PartitionProduceResponse


_UNCHECKED = tuple[TopicPartition, memoryview, PartitionProduceResponse]
"""A batch that has to be decompressed to be checked, is stored in another codec, or holds records
at fault, which are still to be named."""


@dataclass(slots=True)
class _Progress:
    """What of a request is not done yet."""

    waiting: list[_Waiting] = field(default_factory=list)
    unchecked: list[_UNCHECKED] = field(default_factory=list)
    held_up: set[TopicPartition] = field(default_factory=set)
    """The partitions of what is unchecked."""

    def leave(
        self, key: TopicPartition, data: memoryview, result: PartitionProduceResponse
    ) -> None:
        """To be checked off the event loop."""
        self.unchecked.append((key, data, result))
        self.held_up.add(key)


def handle_produce(
    services: Services, request: Request, message: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append everything now; wait only for batches that have to be decompressed to be checked, or
    while the acks are not satisfied yet."""
    progress = _Progress()
    responses = []
    for topic in message.topic_data:
        results = []
        for part in topic.partition_data:
            key = TopicPartition(topic.name, part.index)
            result = PartitionProduceResponse(index=part.index, base_offset=-1)
            results.append(result)
            try:
                _take(services, request, message.acks, key, part.records, result, progress)
            except (BrokerError, StorageError) as error:
                _refuse(services, key, result, error)
        responses.append(TopicProduceResponse(name=topic.name, partition_responses=results))
    response = ProduceResponse(responses=responses)
    if progress.unchecked:
        return _check_and_finish(services, request, message, response, progress)
    return _finish(services, message, response, progress)


def _take(
    services: Services,
    request: Request,
    acks: int,
    key: TopicPartition,
    records: Buffer | None,
    result: PartitionProduceResponse,
    progress: _Progress,
) -> None:
    """Append one partition's batch, or leave it to be checked elsewhere."""
    if acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}, not -1, 0 or 1")
    if request.version < _FIRST_VERSION_WITH_BATCHES:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Produce version {request.version} carries message formats 0 and 1; "
            "this broker stores record batches, which need version 3 or later",
        )
    if key.topic in INTERNAL_TOPICS and request.header.client_id != _ADMIN_CLIENT_ID:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{key.topic} is written by the broker only"
        )
    partition = _leader(services, key, acks)
    data = memoryview(records) if records is not None else memoryview(b"")
    rules = partition.batch_rules(request.version)
    # A second batch for a partition stays behind the first.
    if key in progress.held_up or has_to_decompress(data, rules):
        progress.leave(key, data, result)
        return
    now_ms = services.clock.wall_ms()
    try:
        header = validate_produced(data, rules, now_ms)
    except RecordsRefused:  # which ones are named off the event loop
        progress.leave(key, data, result)
        return
    _append(services, acks, partition, data, header, now_ms, result, progress)


def _append(
    services: Services,
    acks: int,
    partition: Partition,
    data: memoryview,
    header: BatchHeader,
    now_ms: int,
    result: PartitionProduceResponse,
    progress: _Progress,
) -> None:
    """Append a checked batch. What still has to be committed is added to `progress.waiting`."""
    if header.is_transactional:
        # It would hold back every reader of committed records for ever: nobody could end it.
        raise BrokerError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} has no transaction under way",
        )
    appended = partition.append(data, header, acks=acks, now_ms=now_ms)
    _tell(result, appended)
    if partition.is_replicated:
        services.replicas.appended(partition.topic_partition, len(data))
    end_offset = appended.last_offset + 1
    if partition.high_watermark >= end_offset:
        services.replicas.became_readable(partition.topic_partition, len(data))
    elif acks == -1 or (acks == 1 and partition.log.durable_end < end_offset):
        since = partition.leading_since
        progress.waiting.append(_Waiting(partition, since, end_offset, acks, result))


def _leader(services: Services, key: TopicPartition, acks: int) -> Partition:
    """What leads here and may append. With acks=all the in-sync replicas vouch for it together.
    Raises BrokerError as `ReplicaManager.leader`."""
    asked = "Produce with acks=all" if acks == -1 else "Produce with acks 0 or 1"
    return services.replicas.leader(key, needed=NEEDED[asked])


def answer_append(
    services: Services, partition: Partition, appended: AppendResult, acks: int, timeout_ms: int
) -> Awaitable[ProduceResponse]:
    """The response to a batch that was appended and may not be acknowledged yet."""
    key = partition.topic_partition
    result = PartitionProduceResponse(index=key.partition)
    _tell(result, appended)
    end_offset = appended.last_offset + 1
    waiting = _Waiting(partition, partition.leading_since, end_offset, acks, result)
    return _when_acknowledged(services, [waiting], timeout_ms, _response(key.topic, result))


def answer_failure(
    services: Services, partition: Partition, error: BrokerError | StorageError
) -> ProduceResponse:
    """The response to the only batch of a request, which could not be appended."""
    key = partition.topic_partition
    result = PartitionProduceResponse(index=key.partition, base_offset=-1)
    _refuse(services, key, result, error)
    return _response(key.topic, result)


def _response(topic: str, result: PartitionProduceResponse) -> ProduceResponse:
    return ProduceResponse(
        responses=[TopicProduceResponse(name=topic, partition_responses=[result])]
    )


def _tell(result: PartitionProduceResponse, appended: AppendResult) -> None:
    result.base_offset = appended.first_offset
    result.log_append_time_ms = appended.log_append_time_ms
    result.log_start_offset = appended.log_start_offset


async def _check_and_finish(
    services: Services,
    request: Request,
    message: ProduceRequest,
    response: ProduceResponse,
    progress: _Progress,
) -> ProduceResponse | None:
    """Check off the event loop, then append. The connection keeps the request's frame meanwhile,
    and handles no other."""
    for key, data, result in progress.unchecked:
        try:
            partition = services.replicas.leader(key)
            rules = partition.batch_rules(request.version)
            now_ms = services.clock.wall_ms()
            stored, header = await services.blocking.run(stored_form, data, rules, now_ms)
            # Looked up again: it may have gone, or have another leader, in the meantime.
            services.standing.check()
            partition = _leader(services, key, message.acks)
            _append(services, message.acks, partition, stored, header, now_ms, result, progress)
        except RecordsRefused as error:
            _refuse(services, key, result, error)
            result.log_start_offset = partition.log.log_start_offset
        except (BrokerError, StorageError) as error:
            _refuse(services, key, result, error)
    finished = _finish(services, message, response, progress)
    return await finished if isinstance(finished, Awaitable) else finished


def _finish(
    services: Services, message: ProduceRequest, response: ProduceResponse, progress: _Progress
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    """Answer as `acks` says, when every batch is appended or has failed."""
    if message.acks == 0:
        if any(
            part.error_code for topic in response.responses for part in topic.partition_responses
        ):
            raise CloseConnection("a produce request with acks=0 failed")
        return None
    if progress.waiting:
        return _when_acknowledged(services, progress.waiting, message.timeout_ms, response)
    return response


def _refuse(
    services: Services,
    key: TopicPartition,
    result: PartitionProduceResponse,
    error: BrokerError | StorageError,
) -> None:
    """Tell the client that its batch was not appended."""
    counters = services.metrics.counters(key.topic)
    counters.produce_requests += 1
    counters.failed_produce_requests += 1
    _fail(key, result, error)


def _fail(
    key: TopicPartition, result: PartitionProduceResponse, error: BrokerError | StorageError
) -> None:
    """Tell the client what went wrong with its batch."""
    if isinstance(error, StorageError):
        log.error("append failed partition=%s error=%s", key, error)
        error = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
    result.error_code = error.code
    result.error_message = error.detail
    result.base_offset = -1
    if isinstance(error, RecordsRefused):
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=words)
            for index, words in error.records
        ]


async def _when_acknowledged(
    services: Services, waiting: list[_Waiting], timeout_ms: int, response: ProduceResponse
) -> ProduceResponse:
    """Answer when every batch is as its acks say, or fails to be within `timeout_ms`."""
    clock = services.clock
    deadline = clock.monotonic() + max(timeout_ms, 0) / 1000
    pending = waiting
    while pending := [item for item in pending if not _is_decided(services, item)]:
        remaining_s = deadline - clock.monotonic()
        if remaining_s <= 0:
            for item in pending:
                _fail(
                    item.partition.topic_partition,
                    item.result,
                    BrokerError(ErrorCode.REQUEST_TIMED_OUT),
                )
            break
        first = pending[0]
        # In a purgatory of produces the unit is an offset.
        is_lone = len(pending) == 1 and first.acks == -1
        offsets = first.end_offset - first.partition.high_watermark if is_lone else 1
        keys = [item.partition.topic_partition for item in pending]
        await services.replicas.produces.wait(keys, missing_bytes=offsets, timeout_s=remaining_s)
    return response


def _is_decided(services: Services, item: _Waiting) -> bool:
    """Whether the batch may be acknowledged, or never will; the result says which. As long as too
    few replicas are in sync nothing is committed, so a producer that asked for it had better try
    again."""
    partition = item.partition
    key = partition.topic_partition
    try:
        if (
            services.replicas.leader(key) is not partition
            or partition.leading_since != item.leading_since
        ):
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not led here as it was")
        if item.acks == 1:
            return partition.log.durable_end >= item.end_offset
        if not partition.may_have_enough_replicas():
            raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if partition.high_watermark >= item.end_offset:
            return True
        services.replicas.require(partition, NEEDED["Produce with acks=all"])
    except BrokerError as error:
        _fail(key, item.result, error)
        return True
    return False
