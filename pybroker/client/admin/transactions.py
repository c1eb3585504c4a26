"""Requests about transactions (KIP-664, KIP-588): listing and describing transactional ids, fencing
their producers, and aborting a hanging transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.client.admin.calls import Calls
from pybroker.client.connection import Connection
from pybroker.client.coordinator_calls import TRANSACTION, ask_coordinators
from pybroker.client.errors import ClientError, UnsupportedByBroker
from pybroker.client.leader_calls import response_error
from pybroker.client.metadata import Node
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.transaction_admin import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from pybroker.wire.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

DURATION_VERSION: Final = 1
"""The version of ListTransactions that has the filter by duration (KIP-994)."""
ALL: Final = -1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a coordinator's list. `coordinator` is a broker id. `state` is Kafka's
    name of the transaction's state, such as "Ongoing"."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionList:
    """The transactional ids of a cluster, sorted by id. `errors` has an error for each broker whose
    request failed; the ids of such a broker are missing."""

    transactions: tuple[TransactionListing, ...]
    errors: Mapping[int, ClientError] = field(default_factory=dict)

    def check(self) -> TransactionList:
        """Return the list itself, or raise the first of the `errors`."""
        for error in self.errors.values():
            raise error
        return self


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id. `start_ms` is the time at which the last transaction began
    (ms since 1970; -1: none). `partitions` are those that still need a commit or abort marker. If
    the request failed, only `error` is set."""

    transactional_id: str
    coordinator: int = -1
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    start_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()
    error: ClientError | None = None

    def check(self) -> TransactionDescription:
        """Return the description itself, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The result for a transactional id: all producers with an epoch below `producer_epoch` are
    fenced. If the request failed, only `error` is set."""

    producer_id: int = -1
    producer_epoch: int = -1
    error: ClientError | None = None

    def check(self) -> FencedProducer:
        """Return this object, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction to abort in one partition. The leader refuses a `coordinator_epoch` below that
    of the producer's last marker."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


async def list_transactions(
    calls: Calls,
    states: Iterable[str],
    producer_ids: Iterable[int],
    duration_ms: int,
    *,
    timeout_ms: int | None,
) -> TransactionList:
    """Return the transactions that the brokers coordinate, sorted by transactional id, and the
    errors by broker. `Admin.list_transactions` describes the filters."""
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=max(duration_ms, ALL),
    )

    async def ask(connection: Connection, timeout_s: float) -> ListTransactionsResponse:
        version = connection.version_of(ApiKey.LIST_TRANSACTIONS)
        if duration_ms >= 0 and version < DURATION_VERSION:
            raise UnsupportedByBroker(
                f"the broker supports ListTransactions up to version {version}, but "
                f"version {DURATION_VERSION} or above is needed to list transactions by "
                "duration"
            )
        answer = await connection.send(
            ApiKey.LIST_TRANSACTIONS, request, ListTransactionsResponse, timeout_s=timeout_s
        )
        if error := response_error(answer.error_code):
            raise error
        return answer

    found: list[TransactionListing] = []
    errors: dict[int, ClientError] = {}
    for broker, answer in (await calls.each_broker(None, ask, timeout_ms)).items():
        if isinstance(answer, ClientError):
            errors[broker] = answer
            continue
        found += [
            TransactionListing(row.transactional_id, broker, row.producer_id, row.transaction_state)
            for row in answer.transaction_states
        ]
    return TransactionList(
        tuple(sorted(found, key=lambda row: (row.transactional_id, row.coordinator))), errors
    )


async def describe_transactions(
    calls: Calls, transactional_ids: Iterable[str], *, timeout_ms: int | None
) -> dict[str, TransactionDescription]:
    """Return the state of each transactional id, or the error."""
    calls.check_opened()

    async def ask(
        connection: Connection, node: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, TransactionDescription | ClientError]:
        answer = await connection.send(
            ApiKey.DESCRIBE_TRANSACTIONS,
            DescribeTransactionsRequest(transactional_ids=list(chosen)),
            DescribeTransactionsResponse,
            timeout_s=timeout_s,
        )
        return {
            row.transactional_id: response_error(row.error_code) or _description(row, node)
            for row in answer.transaction_states
        }

    answers = await ask_coordinators(
        calls.cluster,
        transactional_ids,
        ask,
        deadline=calls.deadline(timeout_ms),
        key_type=TRANSACTION,
    )
    return {
        name: TransactionDescription(name, error=answer)
        if isinstance(answer, ClientError)
        else answer
        for name, answer in answers.items()
    }


def _description(row: DescribedTransaction, coordinator: Node) -> TransactionDescription:
    return TransactionDescription(
        row.transactional_id,
        coordinator.id,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        tuple(
            sorted(
                TopicPartition(topic.topic, number)
                for topic in row.topics
                for number in topic.partitions
            )
        ),
    )


async def fence_producers(
    calls: Calls, transactional_ids: Iterable[str], *, timeout_ms: int | None
) -> dict[str, FencedProducer]:
    """Fence the producers of each transactional id, and abort its open transaction
    (InitProducerId). Return one result for each id. An unknown id is created, as in Kafka."""
    calls.check_opened()

    async def fence(connection: Connection, name: str, timeout_s: float) -> FencedProducer:
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=calls.wait_ms(timeout_ms)
        )
        answer = await connection.send(
            ApiKey.INIT_PRODUCER_ID, request, InitProducerIdResponse, timeout_s=timeout_s
        )
        if error := response_error(answer.error_code):
            raise error
        return FencedProducer(answer.producer_id, answer.producer_epoch)

    async def ask(
        connection: Connection, _: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, FencedProducer | ClientError]:
        results: dict[str, FencedProducer | ClientError] = {}
        for name in chosen:
            try:
                results[name] = await fence(connection, name, timeout_s)
            except ClientError as error:
                results[name] = error
        return results

    answers = await ask_coordinators(
        calls.cluster,
        transactional_ids,
        ask,
        deadline=calls.deadline(timeout_ms),
        key_type=TRANSACTION,
    )
    return {
        name: FencedProducer(error=answer) if isinstance(answer, ClientError) else answer
        for name, answer in answers.items()
    }


async def abort_transaction(
    calls: Calls, transaction: OpenTransaction, *, timeout_ms: int | None
) -> None:
    """Let the partition's leader write an abort marker (WriteTxnMarkers). Raises ClientError if the
    leader does not confirm the marker. A request that may have succeeded is not retried: a retry
    could abort the producer's next transaction."""

    async def ask(
        connection: Connection, _: tuple[TopicPartition, ...], timeout_s: float
    ) -> dict[TopicPartition, bool | ClientError]:
        key = transaction.partition
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=key.topic, partition_indexes=[key.partition])],
            coordinator_epoch=transaction.coordinator_epoch,
        )
        answer = await connection.send(
            ApiKey.WRITE_TXN_MARKERS,
            WriteTxnMarkersRequest(markers=[marker]),
            WriteTxnMarkersResponse,
            timeout_s=timeout_s,
        )
        return {
            TopicPartition(topic.name, row.partition_index): response_error(row.error_code) or True
            for result in answer.markers
            for topic in result.topics
            for row in topic.partitions
        }

    answers = await calls.leaders([transaction.partition], ask, timeout_ms, repeatable=False)
    answer = answers[transaction.partition]
    if isinstance(answer, ClientError):
        raise answer
