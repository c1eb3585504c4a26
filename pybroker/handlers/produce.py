"""Produce: check each batch, append it, and answer when `acks` is satisfied.

Every partition of the request gets its own result; one that fails does not hold up the others. With
acks=0 there is no answer, and a failure closes the connection, as the client could not be told
otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from pybroker.errors import BrokerError, CloseConnection, ErrorCode, StorageError
from pybroker.handlers.context import Request, Services
from pybroker.model import TopicPartition
from pybroker.ports import Buffer
from pybroker.records.validate import validate_produced
from pybroker.replication.partition import Partition
from pybroker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

log = logging.getLogger(__name__)

_FIRST_VERSION_WITH_BATCHES = 3
_WAITING = tuple[TopicPartition, Partition, int, PartitionProduceResponse]
"""A batch that is written but not yet committed: partition, end offset that must be committed."""


def handle_produce(
    services: Services, request: Request, message: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    """Append everything now; wait only if acks=all is not satisfied yet."""
    waiting: list[_WAITING] = []
    responses = []
    failed = False
    for topic in message.topic_data:
        results = []
        for part in topic.partition_data:
            key = TopicPartition(topic.name, part.index)
            result = _append(services, request, message.acks, key, part.records, waiting)
            failed = failed or result.error_code != 0
            results.append(result)
        responses.append(TopicProduceResponse(name=topic.name, partition_responses=results))
    if message.acks == 0:
        if failed:
            raise CloseConnection("a produce request with acks=0 failed")
        return None
    response = ProduceResponse(responses=responses)
    if waiting:
        return _when_committed(services, waiting, message.timeout_ms, response)
    return response


def _append(
    services: Services,
    request: Request,
    acks: int,
    key: TopicPartition,
    records: Buffer | None,
    waiting: list[_WAITING],
) -> PartitionProduceResponse:
    """Append one partition's batch. What still has to be committed is added to `waiting`."""
    result = PartitionProduceResponse(index=key.partition, base_offset=-1)
    try:
        if acks not in (-1, 0, 1):
            raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}, not -1, 0 or 1")
        if request.version < _FIRST_VERSION_WITH_BATCHES:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"Produce version {request.version} carries message formats 0 and 1; "
                "this broker stores record batches, which need version 3 or later",
            )
        partition = services.replicas.leader(key)
        data = memoryview(records) if records is not None else memoryview(b"")
        now_ms = services.clock.wall_ms()
        header = validate_produced(data, partition.batch_rules(request.version), now_ms)
        appended = partition.append(data, header, acks=acks, now_ms=now_ms)
    except BrokerError as error:
        result.error_code = error.code
        result.error_message = error.detail
        return result
    except StorageError as error:
        log.error("append failed partition=%s error=%s", key, error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        result.error_message = ErrorCode.KAFKA_STORAGE_ERROR.text
        return result
    result.base_offset = appended.first_offset
    result.log_append_time_ms = appended.log_append_time_ms
    result.log_start_offset = appended.log_start_offset
    committed_end = appended.last_offset + 1
    if partition.high_watermark >= committed_end:
        services.replicas.became_readable(key, len(data))
    elif acks == -1:
        waiting.append((key, partition, committed_end, result))
    return result


async def _when_committed(
    services: Services, waiting: list[_WAITING], timeout_ms: int, response: ProduceResponse
) -> ProduceResponse:
    """Answer when every batch is committed, or fails to be within `timeout_ms`."""
    clock = services.clock
    deadline = clock.monotonic() + max(timeout_ms, 0) / 1000
    pending = waiting
    while pending := [item for item in pending if not _is_decided(item)]:
        remaining_s = deadline - clock.monotonic()
        if remaining_s <= 0:
            for *_, result in pending:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
                result.error_message = ErrorCode.REQUEST_TIMED_OUT.text
                result.base_offset = -1
            break
        keys = [key for key, *_ in pending]
        await services.replicas.produces.wait(keys, missing_bytes=1, timeout_s=remaining_s)
    return response


def _is_decided(item: _WAITING) -> bool:
    """Whether the batch is committed, or can no longer be told to be; the result says which."""
    _, partition, committed_end, result = item
    try:
        partition.require_leader(-1)
    except BrokerError as error:
        result.error_code = error.code
        result.error_message = error.detail
        result.base_offset = -1
        return True
    if partition.high_watermark < committed_end:
        return False
    if not partition.has_enough_replicas():
        result.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        result.error_message = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND.text
        result.base_offset = -1
    return True
