"""The requests of a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pybroker.client.group_values import GroupMetadata, OffsetAndMetadata
from pybroker.client.identity import ProducerIdentity
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

ADD_PARTITIONS_VERSION = 3
"""The highest version of AddPartitionsToTxn for clients; only brokers send version 4."""


def add_partitions(
    transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(number)
    return AddPartitionsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        topics=list(topics.values()),
    )


def added_codes(answer: AddPartitionsToTxnResponse) -> list[ErrorCode]:
    return [error_code(row.error_code) for topic in answer.results for row in topic.results]


def commit_offsets(
    transactional_id: str,
    identity: ProducerIdentity,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> TxnOffsetCommitRequest:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, TxnOffsetCommitRequestTopic(name=topic)).partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=group.generation,
        member_id=group.member_id,
        group_instance_id=group.instance_id,
        topics=list(topics.values()),
    )


def committed_codes(answer: TxnOffsetCommitResponse) -> list[ErrorCode]:
    return [error_code(row.error_code) for topic in answer.topics for row in topic.partitions]
