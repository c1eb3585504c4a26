"""Requests of valid and invalid transactional producers, field by field: one function per API,
which returns the error code or the codes of all partitions. Also the effects that consumers and
operators see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from integration_tests.wire_client import (
    Connection,
    fetch,
    fetch_request,
    list_offsets_request,
    log_end,
)
from pybroker.errors import ErrorCode
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.wire.messages.fetch import PartitionData
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.messages.list_offsets import ListOffsetsResponse
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pybroker.wire.messages.transaction_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from pybroker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from unit_tests.patience import PATIENCE_MS, wait_until

T = TypeVar("T")
TRANSACTIONS: Final = 1
"""The key type of transactional ids in FindCoordinator."""
PASSING: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""The error codes after which a producer repeats the same request."""
TIMEOUT_MS: Final = 120_000
FOREIGN: Final = 1 << 40
"""A producer id that no producer of the tests gets."""
READ_COMMITTED: Final = 1
LATEST: Final = -1


class Producer(NamedTuple):
    """A transactional id with the producer id and epoch that its requests have."""

    transactional_id: str
    producer_id: int
    epoch: int

    def at(self, epoch: int) -> Producer:
        return self._replace(epoch=epoch)


def settled(ask: Callable[[], T], code_of: Callable[[T], int]) -> T:
    """Repeat a request while its error code is in PASSING. Return the last answer."""
    answers: list[T] = []

    def has_settled() -> bool:
        answers.append(ask())
        return code_of(answers[-1]) not in PASSING

    wait_until(has_settled, what="an answer that needs no repetition")
    return answers[-1]


def find(connection: Connection, transactional_id: str) -> None:
    """Wait until the transactional id has a coordinator."""
    request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTIONS)
    wait_until(
        lambda: connection.ask(3, request, FindCoordinatorResponse).error_code == 0,
        what="a transaction coordinator",
    )


def init(
    connection: Connection,
    transactional_id: str,
    *,
    timeout_ms: int = TIMEOUT_MS,
    expected: tuple[int, int] = (-1, -1),
    version: int = 4,
) -> InitProducerIdResponse:
    """Ask for a producer id once. `expected`: the producer id and epoch of KIP-360."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    )
    if version >= 3:
        request.producer_id, request.producer_epoch = expected
    return connection.ask(version, request, InitProducerIdResponse)


def init_code(connection: Connection, transactional_id: str, **changes: Any) -> int:
    """Ask for a producer id until the answer needs no repetition. Return its error code."""
    ask = partial(init, connection, transactional_id, **changes)
    return settled(ask, lambda answer: answer.error_code).error_code


def started(connection: Connection, transactional_id: str, **changes: Any) -> Producer:
    """Return a producer that has its producer id and epoch."""
    find(connection, transactional_id)
    ask = partial(init, connection, transactional_id, **changes)
    found = settled(ask, lambda answer: answer.error_code)
    assert found.error_code == 0, found
    return Producer(transactional_id, found.producer_id, found.producer_epoch)


def add_once(
    connection: Connection,
    producer: Producer,
    partitions: Mapping[str, Sequence[int]],
    *,
    version: int = 3,
) -> dict[tuple[str, int], int]:
    """Add partitions to the transaction. Return the code of each (topic, partition)."""
    request = AddPartitionsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[
            AddPartitionsToTxnTopic(name=name, partitions=[*numbers])
            for name, numbers in partitions.items()
        ],
    )
    answer = connection.ask(version, request, AddPartitionsToTxnResponse)
    return {
        (topic.name, row.partition_index): row.error_code
        for topic in answer.results
        for row in topic.results
    }


def add(
    connection: Connection,
    producer: Producer,
    topic: str,
    *partitions: int,
    version: int = 3,
) -> int:
    """Add partitions (default: 0) of one topic to the transaction. Return their common code."""
    wanted = {topic: partitions or (0,)}
    ask = partial(add_once, connection, producer, wanted, version=version)
    (code,) = set(settled(ask, lambda codes: next(iter(codes.values()))).values())
    return code


def add_offsets(connection: Connection, producer: Producer, group: str, *, version: int = 3) -> int:
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    ask = partial(connection.ask, version, request, AddOffsetsToTxnResponse)
    return settled(ask, lambda answer: answer.error_code).error_code


def end(connection: Connection, producer: Producer, *, commit: bool, version: int = 3) -> int:
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    ask = partial(connection.ask, version, request, EndTxnResponse)
    return settled(ask, lambda answer: answer.error_code).error_code


def commit_offsets(
    connection: Connection,
    producer: Producer,
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    version: int = 3,
) -> dict[tuple[str, int], int]:
    """Commit the offsets of (topic, partition) with the transaction. Return the code of each."""
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
                ],
            )
            for (topic, number), offset in offsets.items()
        ],
    )
    if version >= 3:
        request.generation_id, request.member_id = generation, member
        request.group_instance_id = instance

    def ask() -> dict[tuple[str, int], int]:
        answer = connection.ask(version, request, TxnOffsetCommitResponse)
        return {
            (topic.name, row.partition_index): row.error_code
            for topic in answer.topics
            for row in topic.partitions
        }

    return settled(ask, lambda codes: next(iter(codes.values())))


def transactional_batch(producer: Producer, *values: bytes, sequence: int = 0) -> bytes:
    builder = BatchBuilder(Codec.NONE)
    for value in values:
        builder.append(int(time.time() * 1000), b"key", value)
    return builder.build(
        producer.producer_id, producer.epoch, base_sequence=sequence, transactional=True
    )


def write_once(
    connection: Connection,
    topic: str,
    batch: bytes,
    transactional_id: str | None,
    *,
    partition: int = 0,
) -> PartitionProduceResponse:
    """Append a batch with the transactional id in the request."""
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=PATIENCE_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    (found,) = connection.ask(9, request, ProduceResponse).responses[0].partition_responses
    return found


def write(
    connection: Connection,
    producer: Producer,
    topic: str,
    *values: bytes,
    sequence: int = 0,
    partition: int = 0,
) -> int:
    """Append a batch of the transaction. Return its code. A leader that cannot verify the
    transaction yet answers NOT_ENOUGH_REPLICAS; the producer then repeats the request."""
    batch = transactional_batch(producer, *values, sequence=sequence)
    codes: list[int] = []

    def is_verified() -> bool:
        found = write_once(connection, topic, batch, producer.transactional_id, partition=partition)
        codes.append(found.error_code)
        return found.error_code != ErrorCode.NOT_ENOUGH_REPLICAS

    wait_until(is_verified, what="the leader verifies the transaction")
    return codes[-1]


def mark(
    connection: Connection,
    producer: Producer,
    topic: str,
    *,
    commit: bool,
    coordinator_epoch: int,
    partition: int = 0,
) -> int:
    """Write a marker to a partition, as a coordinator does. Return its code."""
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=coordinator_epoch,
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    answer = connection.ask(1, request, WriteTxnMarkersResponse)
    (row,) = answer.markers[0].topics[0].partitions
    return row.error_code


def state_of(connection: Connection, producer: Producer) -> str:
    """Return the state of the transactional id; "" if it is unknown."""
    request = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id])
    (found,) = connection.ask(0, request, DescribeTransactionsResponse).transaction_states
    assert found.error_code in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return found.transaction_state


def committed(connection: Connection, topic: str, offset: int = 0) -> PartitionData:
    """Fetch from partition 0 as a read_committed consumer."""
    request = fetch_request(topic, {0: offset}, isolation_level=READ_COMMITTED)
    return fetch(connection, request)[0]


def aborted(connection: Connection, topic: str, offset: int) -> list[tuple[int, int]]:
    """Return the aborted transactions (producer id, first offset) that a read_committed consumer
    gets from this offset."""
    rows = committed(connection, topic, offset).aborted_transactions
    assert rows is not None
    return [(row.producer_id, row.first_offset) for row in rows]


def last_stable(connection: Connection, topic: str) -> int:
    """Return the latest offset for read_committed consumers."""
    request = list_offsets_request(topic, LATEST, isolation_level=READ_COMMITTED)
    (found,) = connection.ask(7, request, ListOffsetsResponse).topics[0].partitions
    assert found.error_code == 0
    return found.offset


def wait_for_end(connection: Connection, topic: str, end_offset: int) -> None:
    """Wait until all transactions in partition 0 have ended and the log has this end."""
    wait_until(
        lambda: last_stable(connection, topic) == log_end(connection, topic) == end_offset,
        what="the markers are written",
    )
