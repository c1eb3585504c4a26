"""Produce: checks and appends each batch, and answers when `acks` is satisfied. A request with
acks=0 has no response, so a failure closes the connection."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field

from pybroker.errors import BrokerError, CloseConnection, ErrorCode, StorageError
from pybroker.handlers.acknowledgement import Waiting, when_acknowledged
from pybroker.handlers.context import Request, Services
from pybroker.handlers.produce_guards import (
    Guards,
    begin_guards,
    confirm_guards,
    confirm_guards_at_once,
)
from pybroker.model import INTERNAL_TOPICS, TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader
from pybroker.records.refusals import RecordsRefused
from pybroker.records.validate import has_to_decompress, stored_form, validate_produced
from pybroker.replication.authority import NEEDED
from pybroker.replication.partition import Partition
from pybroker.replication.spread import persist_epochs
from pybroker.storage.log import Log
from pybroker.storage.log_parts import AppendResult
from pybroker.storage.producer_state import EXEMPT
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


_Waiting = Waiting[PartitionProduceResponse]
_UNCHECKED = tuple[TopicPartition, memoryview, PartitionProduceResponse]
"""A batch that a thread has to check: the batch has to be decompressed, has to be compressed with
another codec, or has invalid records that the thread has to find."""


@dataclass(slots=True)
class _Progress:
    """The batches of one request that are still unchecked or still unacknowledged."""

    guards: Guards
    waiting: list[_Waiting] = field(default_factory=list)
    unchecked: list[_UNCHECKED] = field(default_factory=list)
    held_up: set[TopicPartition] = field(default_factory=set)
    """The partitions that have unchecked batches. A later batch of such a partition has to wait
    until the unchecked batch is appended."""

    def leave_to_thread(
        self, key: TopicPartition, data: memoryview, result: PartitionProduceResponse
    ) -> None:
        """Leave the check of a batch to a thread. `key` is the partition, `result` the batch's part
        of the response."""
        self.unchecked.append((key, data, result))
        self.held_up.add(key)


def handle_produce(
    services: Services, request: Request, message: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append the batches. Return the response (None for acks=0), or an awaitable of it if the
    request has to wait."""
    guards = begin_guards(services, message)
    if _new_epochs(services, message) or (
        guards.unconfirmed and not confirm_guards_at_once(services, message, guards)
    ):
        return _prepare_and_append(services, request, message, guards)
    return _append_all(services, request, message, guards)


async def _prepare_and_append(
    services: Services, request: Request, message: ProduceRequest, guards: Guards
) -> ProduceResponse | None:
    """Ask the transaction coordinators to confirm the transactions. Write the leader epoch file of
    each log whose leader epoch begins with this request. Then append the batches."""
    if guards.unconfirmed:
        await confirm_guards(services, message, guards)
    await persist_epochs(services.blocking, _new_epochs(services, message))
    services.lease.check()
    produced = _append_all(services, request, message, guards)
    return await produced if isinstance(produced, Awaitable) else produced


def _new_epochs(services: Services, message: ProduceRequest) -> list[Log]:
    """Return the logs to which the request writes the first batch of a leader epoch."""
    found = []
    for topic in message.topic_data:
        for part in topic.partition_data:
            each = services.replicas.partitions.get(TopicPartition(topic.name, part.index))
            if each is not None and each.log.epoch_file.changed and each.is_leader:
                found.append(each.log)
    return found


def _append_all(
    services: Services, request: Request, message: ProduceRequest, guards: Guards
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    progress = _Progress(guards)
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
    """Check and append the batch of one partition. A batch that cannot be checked at once is left
    to a thread (`progress.unchecked`). Raise BrokerError or StorageError if the batch cannot be
    appended."""
    if progress.guards.refusal is not None:
        raise progress.guards.refusal
    if acks not in (-1, 0, 1):
        raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: expected -1, 0 or 1")
    if request.version < _FIRST_VERSION_WITH_BATCHES:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Produce version {request.version} has the message format 0 or 1, but "
            "this broker stores only record batches: use Produce version "
            f"{_FIRST_VERSION_WITH_BATCHES} or later",
        )
    if key.topic in INTERNAL_TOPICS and request.header.client_id != _ADMIN_CLIENT_ID:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"clients must not write to the internal topic {key.topic}",
        )
    partition = _leader(services, key, acks)
    data = memoryview(records) if records is not None else memoryview(b"")
    rules = partition.batch_rules(request.version)
    # A second batch for a partition is appended after the first one.
    if key in progress.held_up or has_to_decompress(data, rules):
        progress.leave_to_thread(key, data, result)
        return
    now_ms = services.clock.wall_ms()
    try:
        header = validate_produced(data, rules, now_ms)
    except RecordsRefused:  # a thread finds the invalid records
        progress.leave_to_thread(key, data, result)
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
    """Append a checked batch and fill in `result`. If the batch is not acknowledged yet, add it to
    `progress.waiting`."""
    guard = progress.guards.of(partition.topic_partition) if header.is_transactional else EXEMPT
    appended = partition.append(data, header, acks=acks, now_ms=now_ms, guard=guard)
    _tell(result, appended)
    if partition.is_replicated:
        services.replicas.appended(partition.topic_partition, len(data))
    end_offset = appended.last_offset + 1
    if partition.high_watermark >= end_offset:
        services.replicas.became_readable(partition.topic_partition, len(data))
    elif acks == -1 or (acks == 1 and partition.log.durable_end < end_offset):
        since = partition.leading_since
        progress.waiting.append(Waiting(partition, since, end_offset, acks, result))


def _leader(services: Services, key: TopicPartition, acks: int) -> Partition:
    """Return the partition if this broker leads it and the ZooKeeper lease allows an append with
    `acks`. Otherwise raise BrokerError, such as NOT_LEADER_OR_FOLLOWER."""
    asked = "Produce with acks=all" if acks == -1 else "Produce with acks 0 or 1"
    return services.replicas.leader(key, needed=NEEDED[asked])


def answer_unacknowledged(
    partition: Partition, appended: AppendResult, error: BrokerError
) -> ProduceResponse:
    """Return the response with `error` to a request whose only batch was appended but could not be
    acknowledged."""
    key = partition.topic_partition
    result = PartitionProduceResponse(index=key.partition)
    _tell(result, appended)
    _fail(key, result, error)
    return _response(key.topic, result)


def answer_failure(
    services: Services, partition: Partition, error: BrokerError | StorageError
) -> ProduceResponse:
    """Return the response to a Produce request whose only batch could not be appended because of
    `error`."""
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
    """Check each batch of `progress.unchecked` in a thread, then append the batch on the event
    loop. Return the response, or None for acks=0."""
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
    """Return the response. If batches are not acknowledged yet, return an awaitable of the
    response instead. With acks=0, return None if all batches were appended, otherwise raise
    CloseConnection."""
    if message.acks == 0:
        if any(
            part.error_code for topic in response.responses for part in topic.partition_responses
        ):
            raise CloseConnection("a batch of a Produce request with acks=0 could not be appended")
        return None
    if progress.waiting:
        waiting = progress.waiting
        return when_acknowledged(services, waiting, message.timeout_ms, _fail, response)
    return response


def _refuse(
    services: Services,
    key: TopicPartition,
    result: PartitionProduceResponse,
    error: BrokerError | StorageError,
) -> None:
    """Count a batch that is not appended, and set its error in `result`."""
    counters = services.metrics.counters(key.topic)
    counters.produce_requests += 1
    counters.failed_produce_requests += 1
    _fail(key, result, error)


def _fail(
    key: TopicPartition, result: PartitionProduceResponse, error: BrokerError | StorageError
) -> None:
    if isinstance(error, StorageError):
        log.error("produce failed, the log cannot be written partition=%s error=%s", key, error)
        error = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
    result.error_code = error.code
    result.error_message = error.detail
    result.base_offset = -1
    if isinstance(error, RecordsRefused):
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=words)
            for index, words in error.records
        ]
