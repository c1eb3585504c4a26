"""Requests of the admin client to the leaders of partitions: deleting records, and listing the
producers of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.client.admin.calls import Calls
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.client.leader_calls import response_error
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from pybroker.wire.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)

HIGH_WATERMARK: Final = -1
"""The offset that means the high watermark: all records below it are deleted."""


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The result of deleting records in one partition. `low_watermark` is the smallest log start
    offset of the replicas, -1 with an `error`."""

    low_watermark: int
    error: ClientError | None = None

    def check(self) -> DeletedRecords:
        """Return the result itself, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """The state of a producer in a partition, as one replica stores it. `last_timestamp` is in ms
    since 1970. `transaction_start` is the first offset of the open transaction. Unset values are
    -1."""

    id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    """The active producers of a partition. If the request failed, only `error` is set."""

    producers: tuple[ActiveProducer, ...]
    error: ClientError | None = None

    def check(self) -> PartitionProducers:
        """Return this PartitionProducers, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


async def delete_records(
    calls: Calls, before: Mapping[TopicPartition, int], *, timeout_ms: int | None
) -> dict[TopicPartition, DeletedRecords]:
    """Delete the records before the given offset of each partition. With HIGH_WATERMARK, a
    request that the broker may have processed is not retried, because the retry could delete
    more records."""

    async def ask(
        connection: Connection, partitions: tuple[TopicPartition, ...], timeout_s: float
    ) -> dict[TopicPartition, DeletedRecords | ClientError]:
        topics: dict[str, DeleteRecordsTopic] = {}
        for item in partitions:
            topic = topics.setdefault(item.topic, DeleteRecordsTopic(name=item.topic))
            topic.partitions.append(
                DeleteRecordsPartition(partition_index=item.partition, offset=before[item])
            )
        request = DeleteRecordsRequest(
            topics=list(topics.values()), timeout_ms=calls.wait_ms(timeout_ms)
        )
        answer = await connection.send(
            ApiKey.DELETE_RECORDS, request, DeleteRecordsResponse, timeout_s=timeout_s
        )
        return {
            TopicPartition(topic_row.name, row.partition_index): response_error(row.error_code)
            or DeletedRecords(row.low_watermark)
            for topic_row in answer.topics
            for row in topic_row.partitions
        }

    repeatable = HIGH_WATERMARK not in before.values()
    answers = await calls.leaders(before, ask, timeout_ms, repeatable=repeatable)
    return {
        item: DeletedRecords(-1, answer) if isinstance(answer, ClientError) else answer
        for item, answer in answers.items()
    }


async def describe_producers(
    calls: Calls,
    partitions: Iterable[TopicPartition],
    *,
    broker: int | None,
    timeout_ms: int | None,
) -> dict[TopicPartition, PartitionProducers]:
    """Return the active producers of each partition, as the partition's leader knows them. With
    `broker`, return them as the replica on this broker knows them."""

    async def ask(
        connection: Connection, chosen: tuple[TopicPartition, ...], timeout_s: float
    ) -> dict[TopicPartition, PartitionProducers | ClientError]:
        topics: dict[str, DescribeProducersTopic] = {}
        for name, number in chosen:
            topic = topics.setdefault(name, DescribeProducersTopic(name=name))
            topic.partition_indexes.append(number)
        request = DescribeProducersRequest(topics=list(topics.values()))
        answer = await connection.send(
            ApiKey.DESCRIBE_PRODUCERS, request, DescribeProducersResponse, timeout_s=timeout_s
        )
        return _producers(answer)

    wanted = tuple(dict.fromkeys(partitions))
    answers: Mapping[TopicPartition, PartitionProducers | ClientError]
    if broker is None:
        answers = await calls.leaders(wanted, ask, timeout_ms)
    else:

        async def ask_replica(
            connection: Connection, timeout_s: float
        ) -> dict[TopicPartition, PartitionProducers | ClientError]:
            return await ask(connection, wanted, timeout_s)

        try:
            answers = await calls.broker(broker, ask_replica, timeout_ms)
        except ClientError as error:
            answers = dict.fromkeys(wanted, error)
    return {
        item: PartitionProducers((), answer) if isinstance(answer, ClientError) else answer
        for item, answer in answers.items()
    }


def _producers(
    answer: DescribeProducersResponse,
) -> dict[TopicPartition, PartitionProducers | ClientError]:
    return {
        TopicPartition(topic.name, row.partition_index): response_error(
            row.error_code, row.error_message
        )
        or PartitionProducers(
            tuple(
                ActiveProducer(
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.last_sequence,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                )
                for producer in row.active_producers
            )
        )
        for topic in answer.topics
        for row in topic.partitions
    }
