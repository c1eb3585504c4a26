"""TxnOffsetCommit: stores offsets that a producer commits with its transaction (KIP-98). From
version 3 on, a member that has left or states an earlier generation is refused (KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker.coordinator.groups.calls import Identity
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.transactional_commit import TransactionalCommit, commit
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.handlers.offsets import checked, require_lease
from pybroker.model import TopicPartition
from pybroker.ports import Producer
from pybroker.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_FIRST_THAT_HANDLES_LOADING: Final = 2
"""Producers before 2.0 may crash after COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""


async def handle_txn_offset_commit(
    services: Services, request: Request, message: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    items = ((topic.name, item) for topic in message.topics for item in topic.partitions)
    codes, wanted = await checked(services, items)
    if wanted:
        codes.update(await _commit(services, request, message, wanted))
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=codes[TopicPartition(topic.name, item.partition_index)],
                    )
                    for item in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


async def _commit(
    services: Services,
    request: Request,
    message: TxnOffsetCommitRequest,
    wanted: Mapping[TopicPartition, TxnOffsetCommitRequestPartition],
) -> Mapping[TopicPartition, ErrorCode]:
    now_ms = services.clock.wall_ms()
    offsets = {
        key: CommittedOffset(
            item.committed_offset,
            item.committed_leader_epoch,
            item.committed_metadata or "",
            now_ms,
        )
        for key, item in wanted.items()
    }
    try:
        require_lease(services)
        call = TransactionalCommit(
            message.group_id,
            Identity(message.member_id, message.group_instance_id),
            message.generation_id,
            message.transactional_id,
            _producer_of(message),
            offsets,
        )
        return await commit(services.groups.shard_of(message.group_id), call)
    except BrokerError as error:
        code = error.code
        is_old = request.version < _FIRST_THAT_HANDLES_LOADING
        if is_old and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return dict.fromkeys(wanted, code)


def _producer_of(message: TxnOffsetCommitRequest) -> Producer:
    if message.producer_id < 0:
        raise BrokerError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"transactional id {message.transactional_id}: the request has producer id"
            f" {message.producer_id}, expected 0 or more",
        )
    if message.producer_epoch < 0:
        raise BrokerError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"transactional id {message.transactional_id}: the request has producer epoch"
            f" {message.producer_epoch}, expected 0 or"
            " more",
        )
    return Producer(message.producer_id, message.producer_epoch)
