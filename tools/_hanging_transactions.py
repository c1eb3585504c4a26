"""The search of `transactions find-hanging`. A transaction hangs in a partition if it is open
there, but its coordinator does not list the partition: the coordinator will never write the
marker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.partitions import ActiveProducer
from pybroker.client.admin.transactions import TransactionDescription
from pybroker.client.errors import ClientError, ResponseError
from pybroker.client.metadata import TopicInfo
from pybroker.errors import ErrorCode, PybrokerError
from pybroker.model import TopicPartition
from pybroker.tools._cli import Failure, sentence_of

PARTITIONS_MAX: Final = 500
"""The largest number of partitions in one request, as in Kafka's tool."""


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with an open transaction in a partition."""

    partition: TopicPartition
    producer: ActiveProducer


@dataclass(frozen=True, slots=True)
class Scope:
    """The transactions to search; None means no limit. `broker`: only partitions with a replica on
    this broker. `duration_ms`: only producers that sent their last batch longer ago than this."""

    topic: str | None
    partition: int | None
    broker: int | None
    duration_ms: int


def failed(message: str, error: PybrokerError) -> Failure:
    """Return a Failure whose text is `message` and the reason of `error`, as Kafka's tool prints
    them."""
    reason = sentence_of(error).rstrip(".")
    return Failure(f"{message}: {reason}. Enable debug logging for additional detail.")


async def find_hanging(admin: Admin, scope: Scope) -> list[OpenProducer]:
    """Return the hanging transactions in the scope, sorted by partition. Raises Failure."""
    partitions = await _partitions(admin, scope)
    now_ms = time.time_ns() // 1_000_000
    suspected = [
        found
        for some in _batches(partitions)
        for found in await _open_for_long(admin, some, scope, now_ms)
    ]
    if not suspected:
        return []
    producer_ids = sorted({each.producer.id for each in suspected})
    try:
        listed = (await admin.list_transactions(producer_ids=producer_ids)).check()
    except PybrokerError as error:
        message = f"Failed to list transactions for {len(producer_ids)} producers"
        raise failed(message, error) from error
    names = {row.producer_id: row.transactional_id for row in listed.transactions}
    descriptions = await _described(admin, names.values())
    return hanging(suspected, names, descriptions)


def hanging(
    suspected: Iterable[OpenProducer],
    names: Mapping[int, str],
    descriptions: Mapping[str, TransactionDescription],
) -> list[OpenProducer]:
    """Return the hanging transactions, sorted by partition: those in `suspected` whose partition is
    not in the coordinator's description. `names`: producer id -> transactional id. `descriptions`:
    transactional id -> state of the transaction."""

    def will_end(each: OpenProducer) -> bool:
        description = descriptions.get(names.get(each.producer.id, ""))
        return description is not None and each.partition in description.partitions

    found = [each for each in suspected if not will_end(each)]
    return sorted(found, key=lambda each: (each.partition, each.producer.id))


async def _partitions(admin: Admin, scope: Scope) -> list[TopicPartition]:
    if scope.topic is not None and scope.partition is not None:
        return [TopicPartition(scope.topic, scope.partition)]
    topics: Sequence[TopicInfo]
    if scope.topic is None:
        try:
            topics = await admin.list_topics()
        except ClientError as error:
            raise failed("Failed to list topics", error) from error
    else:
        message = "Failed to describe 1 topics"
        try:
            topics = [(await admin.describe_topics([scope.topic]))[scope.topic]]
        except ClientError as error:
            raise failed(message, error) from error
        if topics[0].error is not ErrorCode.NONE:
            raise failed(message, ResponseError(topics[0].error))
    return [
        info.topic_partition
        for topic in topics
        for _, info in sorted(topic.partitions.items())
        if scope.broker is None or scope.broker in info.replicas
    ]


def _batches(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    rest = iter(partitions)
    while some := list(islice(rest, PARTITIONS_MAX)):
        yield some


async def _open_for_long(
    admin: Admin, partitions: Sequence[TopicPartition], scope: Scope, now_ms: int
) -> list[OpenProducer]:
    """Return the producers that have an open transaction and have sent no batch for more than
    `scope.duration_ms`."""
    found = []
    described = await admin.describe_producers(partitions, broker=scope.broker)
    for key, result in described.items():
        if result.error is not None:
            where = "the leader" if scope.broker is None else f"broker {scope.broker}"
            message = f"Failed to describe producers for {len(partitions)} partitions on {where}"
            raise failed(message, result.error) from result.error
        found += [
            OpenProducer(key, producer)
            for producer in result.producers
            if producer.transaction_start >= 0
            and now_ms - producer.last_timestamp > scope.duration_ms
        ]
    return found


async def _described(admin: Admin, names: Iterable[str]) -> dict[str, TransactionDescription]:
    """Return the states of the transactional ids that exist."""
    found = await admin.describe_transactions(names)
    for description in found.values():
        error = description.error
        if error is not None and not _is_unknown(error):
            raise failed(f"Failed to describe {len(found)} transactions", error) from error
    return {name: each for name, each in found.items() if each.error is None}


def _is_unknown(error: ClientError) -> bool:
    return isinstance(error, ResponseError) and error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
