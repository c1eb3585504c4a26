"""Produce: checks each batch, appends it, and answers when `acks` is satisfied.

The answer has one result for each partition of the request. If one batch fails, the others are
still appended. With acks=0 there is no answer, so a failure closes the connection.
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
"""A client with this client id may write to internal topics, as in Kafka."""


class _Waiting(NamedTuple):
    """An appended batch that cannot be acknowledged yet."""

    partition: Partition
    leading_since: int
    """The number of the leadership in which the batch was appended. A later leadership may have
    truncated it."""
    end_offset: int
    """The offset up to which the log must be committed (acks=all) or durable (acks=1)."""
    acks: int
    result: PartitionProduceResponse


_UNCHECKED = tuple[TopicPartition, memoryview, PartitionProduceResponse]
"""A batch that a thread has to handle: to decompress it for the check, to recompress it, or to find
its invalid records."""


@dataclass(slots=True)
class _Progress:
    """The batches of a request that still wait for a check or an acknowledgement."""

    waiting: list[_Waiting] = field(default_factory=list)
    unchecked: list[_UNCHECKED] = field(default_factory=list)
    held_up: set[TopicPartition] = field(default_factory=set)
    """The partitions of the unchecked batches."""

    def leave(
        self, key: TopicPartition, data: memoryview, result: PartitionProduceResponse
    ) -> None:
        """Leave a batch to be checked in a thread."""
        self.unchecked.append((key, data, result))
        self.held_up.add(key)


def handle_produce(
    services: Services, request: Request, message: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append all batches at once. Wait only for batches that a thread has to check, and until
    `acks` is satisfied."""
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
    """Append the batch of one partition, or leave it to be checked in a thread."""
    if acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: expected -1, 0 or 1")
    if request.version < _FIRST_VERSION_WITH_BATCHES:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Produce version {request.version} carries message formats 0 and 1; "
            "this broker stores record batches, which need version 3 or later",
        )
    if key.topic in INTERNAL_TOPICS and request.header.client_id != _ADMIN_CLIENT_ID:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"clients may not write to the internal topic {key.topic}",
        )
    partition = _leader(services, key, acks)
    data = memoryview(records) if records is not None else memoryview(b"")
    rules = partition.batch_rules(request.version)
    # A second batch for a partition is appended after the first one.
    if key in progress.held_up or has_to_decompress(data, rules):
        progress.leave(key, data, result)
        return
    now_ms = services.clock.wall_ms()
    try:
        header = validate_produced(data, rules, now_ms)
    except RecordsRefused:  # a thread finds the invalid records
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
    """Append a checked batch. If it cannot be acknowledged yet, add it to `progress.waiting`."""
    if header.is_transactional:
        # No request could end the transaction, so read_committed consumers would stop here forever.
        raise BrokerError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} has no open transaction",
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
    """Return the local leader of the partition with the authority to append. acks=all needs less
    authority, since all in-sync replicas confirm the batch. Raise the errors of
    `ReplicaManager.leader`."""
    asked = "Produce with acks=all" if acks == -1 else "Produce with acks 0 or 1"
    return services.replicas.leader(key, needed=NEEDED[asked])


def answer_append(
    services: Services, partition: Partition, appended: AppendResult, acks: int, timeout_ms: int
) -> Awaitable[ProduceResponse]:
    """Return the response to an appended batch that cannot be acknowledged yet."""
    key = partition.topic_partition
    result = PartitionProduceResponse(index=key.partition)
    _tell(result, appended)
    end_offset = appended.last_offset + 1
    waiting = _Waiting(partition, partition.leading_since, end_offset, acks, result)
    return _when_acknowledged(services, [waiting], timeout_ms, _response(key.topic, result))


def answer_failure(
    services: Services, partition: Partition, error: BrokerError | StorageError
) -> ProduceResponse:
    """Return the response to the only batch of a request, which could not be appended."""
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
    """Check the batches in a thread, then append them. The connection keeps the request's frame
    until then, and handles no other request."""
    for key, data, result in progress.unchecked:
        try:
            partition = services.replicas.leader(key)
            rules = partition.batch_rules(request.version)
            now_ms = services.clock.wall_ms()
            stored, header = await services.blocking.run(stored_form, data, rules, now_ms)
            # The partition may be deleted or have another leader by now, so it is looked up again.
            services.lease.check()
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
    """Return the answer according to `acks`, after every batch is appended or has failed."""
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
    """Count a rejected batch, and set its error in the result."""
    counters = services.metrics.counters(key.topic)
    counters.produce_requests += 1
    counters.failed_produce_requests += 1
    _fail(key, result, error)


def _fail(
    key: TopicPartition, result: PartitionProduceResponse, error: BrokerError | StorageError
) -> None:
    """Set the error of a batch in its result."""
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
    """Answer when every batch satisfies its acks. After `timeout_ms` the remaining batches get
    REQUEST_TIMED_OUT."""
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
        # The purgatory of produces counts offsets, not bytes.
        is_lone = len(pending) == 1 and first.acks == -1
        offsets = first.end_offset - first.partition.high_watermark if is_lone else 1
        keys = [item.partition.topic_partition for item in pending]
        await services.replicas.produces.wait(keys, missing_bytes=offsets, timeout_s=remaining_s)
    return response


def _is_decided(services: Services, item: _Waiting) -> bool:
    """Whether the batch is acknowledged or has failed; the error of a failed batch is set in the
    result. With fewer in-sync replicas than min.insync.replicas nothing is committed, so the
    producer gets an error and retries."""
    partition = item.partition
    key = partition.topic_partition
    try:
        if (
            services.replicas.leader(key) is not partition
            or partition.leading_since != item.leading_since
        ):
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leader of {key} has changed")
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
