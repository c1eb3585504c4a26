"""WriteTxnMarkers: the leader appends transaction markers, with acks=all. Admin clients, too, send
this request, to abort a hanging transaction (KIP-664)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from pybroker.deferred import Deferred
from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.handlers.acknowledgement import Waiting, when_acknowledged
from pybroker.handlers.context import Request, Services
from pybroker.model import INTERNAL_TOPICS, TopicPartition
from pybroker.records.batch import read_header
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.replication.authority import NEEDED
from pybroker.replication.spread import persist_epochs
from pybroker.storage.log import Log
from pybroker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from pybroker.yield_every import yield_every

log = logging.getLogger(__name__)

_ACKS_ALL: Final = -1
_Waiting = Waiting[WritableTxnMarkerPartitionResult]


async def handle_write_txn_markers(
    services: Services, request: Request, message: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    waiting: list[_Waiting] = []
    items: list[tuple[WritableTxnMarker, TopicPartition, WritableTxnMarkerPartitionResult]] = []
    response = WriteTxnMarkersResponse()
    for marker in message.markers:
        answer = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(answer)
        for topic in marker.topics:
            results = [
                WritableTxnMarkerPartitionResult(partition_index=number)
                for number in topic.partition_indexes
            ]
            answer.topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
            items += [
                (marker, TopicPartition(topic.name, result.partition_index), result)
                for result in results
            ]
    # An append that writes the leader epoch file makes the event loop wait for the disk.
    await persist_epochs(services.blocking, _new_epochs(services, {key for _, key, _ in items}))
    async for marker, key, result in yield_every(items):
        try:
            _require_authorized(services, request, marker)
            _append(services, key, marker, result, waiting)
        except BrokerError as error:
            _fail(key, result, error)
        except StorageError as error:
            log.error("marker cannot be written partition=%s error=%s", key, error)
            _fail(key, result, BrokerError(ErrorCode.KAFKA_STORAGE_ERROR))
    timeout_ms = services.config.request_timeout_ms
    answered = when_acknowledged(services, waiting, timeout_ms, _fail, response)
    return await answered if isinstance(answered, Deferred) else answered


def _new_epochs(services: Services, keys: Collection[TopicPartition]) -> list[Log]:
    """Return the logs in which a marker would be the first batch of a leader epoch."""
    found = (services.replicas.partitions.get(key) for key in keys)
    return [each.log for each in found if each and each.is_leader and each.log.epoch_file.changed]


def _require_authorized(services: Services, request: Request, marker: WritableTxnMarker) -> None:
    """Raise BrokerError CLUSTER_AUTHORIZATION_FAILED for a commit marker that did not arrive on the
    inter-broker listener. Admin clients may only abort."""
    if marker.transaction_result and request.listener != services.config.inter_broker_listener:
        raise BrokerError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "WriteTxnMarkers may commit a transaction only on the inter-broker "
            f"listener {services.config.inter_broker_listener}, but the request "
            f"arrived on the listener {request.listener}",
        )


def _append(
    services: Services,
    key: TopicPartition,
    marker: WritableTxnMarker,
    result: WritableTxnMarkerPartitionResult,
    waiting: list[_Waiting],
) -> None:
    """Append the marker to the partition. If the high watermark has not passed the marker yet, add
    the unfinished `result` to `waiting`. Raise BrokerError or StorageError."""
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"the marker has producer id {marker.producer_id} and producer epoch"
            f" {marker.producer_epoch}, expected both to be 0 or more",
        )
    services.lease.check()
    replicas = services.replicas
    partition = replicas.leader(key, needed=NEEDED["WriteTxnMarkers"])
    is_commit = marker.transaction_result
    now_ms = services.clock.wall_ms()
    end = EndTransaction(
        ControlType.COMMIT if is_commit else ControlType.ABORT, marker.coordinator_epoch
    )
    data = bytearray(
        build_end_transaction(
            end,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=now_ms,
        )
    )
    since = partition.leading_since
    appended = partition.append(memoryview(data), read_header(data), acks=_ACKS_ALL, now_ms=now_ms)
    if partition.is_replicated:
        replicas.appended(key, len(data))
    if key.topic in INTERNAL_TOPICS:
        replicas.on_marker(
            key, appended.last_offset, marker.producer_id, marker.producer_epoch, is_commit
        )
    end_offset = appended.last_offset + 1
    if partition.high_watermark >= end_offset:
        replicas.became_readable(key, len(data))
    else:
        waiting.append(Waiting(partition, since, end_offset, _ACKS_ALL, result))


def _fail(
    key: TopicPartition, result: WritableTxnMarkerPartitionResult, error: BrokerError
) -> None:
    result.error_code = error.code
