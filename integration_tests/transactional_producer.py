"""A transactional producer that sends raw requests, for tests that need each step of a transaction
alone. A step repeats its request, also at another broker, as long as the answer is an error that
Kafka's clients retry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from integration_tests.wire_client import Connection, ConnectionClosed, batch_of, metadata
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import TRANSACTIONAL_FLAG, seal
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pybroker.wire.messages.transaction_admin import (
    DescribedTransaction,
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
)
from unit_tests.patience import ATTEMPT_S, WaitFailed, wait_until

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
TRANSACTION_TIMEOUT_MS: Final = 800_000
"""A transaction timeout in ms that no test reaches."""
RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
_ATTRIBUTES_POSITION: Final = 22
_PRODUCE_TIMEOUT_MS: Final = 3_000


class Unreachable(Exception):
    """A broker did not answer, or is not known yet."""


def ask_any(bootstrap: str, ask: Callable[[Connection], ErrorCode]) -> ErrorCode:
    """Call `ask` with a connection to each broker of `bootstrap` (comma-separated) in turn until a
    broker answers. Raises Unreachable."""
    for address in bootstrap.split(","):
        with suppress(OSError, ConnectionClosed):
            return ask_one(address, ask)
    raise Unreachable(bootstrap)


def ask_one(address: str, ask: Callable[[Connection], ErrorCode]) -> ErrorCode:
    """Call `ask` with a new connection. Raises OSError, ConnectionClosed."""
    with Connection(address) as connection:
        connection.set_timeout(ATTEMPT_S)
        return ask(connection)


def find_coordinator(bootstrap: str, key: str, key_type: int = TRANSACTION_KEY) -> tuple[int, str]:
    """Return the id and the address of the coordinator of a transactional id (key type 1) or of a
    group (key type 0). Raises Unreachable while no broker knows the coordinator."""
    found: list[tuple[int, str]] = []

    def ask(connection: Connection) -> ErrorCode:
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        answer = connection.ask(3, request, FindCoordinatorResponse)
        found.append((answer.node_id, f"{answer.host}:{answer.port}"))
        return error_code(answer.error_code)

    if ask_any(bootstrap, ask) is not ErrorCode.NONE:
        raise Unreachable(f"the coordinator of {key}")
    return found[0]


def described(bootstrap: str, transactional_id: str) -> DescribedTransaction:
    """Return the state of an existing transactional id, which its coordinator describes."""
    found: list[DescribedTransaction] = []

    def ask(connection: Connection) -> ErrorCode:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = connection.ask(0, request, DescribeTransactionsResponse)
        found[:] = answer.transaction_states
        return error_code(found[0].error_code)

    def is_described() -> bool:
        with suppress(OSError, ConnectionClosed, Unreachable):
            return ask_one(find_coordinator(bootstrap, transactional_id)[1], ask) is ErrorCode.NONE
        return False

    wait_until(is_described, what=f"the state of {transactional_id}")
    return found[0]


class TransactionalProducer:
    """A producer with a transactional id. `bootstrap`: comma-separated brokers that answer."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.bootstrap = bootstrap
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    def init(self) -> None:
        """Get a producer id and epoch. An open transaction of an earlier producer is aborted."""
        self._until_done(self.try_init, "a producer id")

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions to the transaction."""
        self._until_done(lambda: self.try_add(partitions), f"the addition of {partitions}")

    def put(self, values: Mapping[TopicPartition, bytes]) -> None:
        """Write one record to each partition, which must be in the transaction."""
        for partition, value in values.items():
            self._until_done(partial(self.try_put, partition, value), f"the record {value!r}")
            self._sequences[partition] = self._sequences.get(partition, 0) + 1

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Add offsets of the group to the transaction."""
        self._until_done(partial(self.try_add_group, group), f"the addition of {group}")
        self._until_done(partial(self.try_commit_offsets, group, offsets), f"offsets of {group}")

    def end(self, *, is_commit: bool) -> None:
        """Commit or abort. Return when the outcome is stored."""
        self._until_done(lambda: self.try_end(is_commit=is_commit), "the end of the transaction")

    def transact(self, values: Mapping[TopicPartition, bytes]) -> None:
        """Commit a transaction with these records."""
        self.add(values.keys())
        self.put(values)
        self.end(is_commit=True)

    # one attempt each

    def try_init(self) -> ErrorCode:
        def ask(connection: Connection) -> ErrorCode:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
            answer = connection.ask(4, request, InitProducerIdResponse)
            if not answer.error_code:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self._sequences.clear()
            return error_code(answer.error_code)

        return self._ask_coordinator(ask)

    def try_add(self, partitions: Collection[TopicPartition]) -> ErrorCode:
        topics: dict[str, list[int]] = {}
        for each in partitions:
            topics.setdefault(each.topic, []).append(each.partition)
        request = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[AddPartitionsToTxnTopic(name=t, partitions=some) for t, some in topics.items()],
        )

        def ask(connection: Connection) -> ErrorCode:
            answer = connection.ask(3, request, AddPartitionsToTxnResponse)
            (code,) = {row.error_code for topic in answer.results for row in topic.results}
            return error_code(code)

        return self._ask_coordinator(ask)

    def try_put(self, partition: TopicPartition, value: bytes) -> ErrorCode:
        """Write a record with the next sequence number, at the partition's leader."""
        sequence = self._sequences.get(partition, 0)
        batch = bytearray(
            batch_of(value, producer=(self.producer_id, self.epoch), sequence=sequence)
        )
        batch[_ATTRIBUTES_POSITION] |= TRANSACTIONAL_FLAG
        seal(batch, 0, len(batch))
        data = PartitionProduceData(index=partition.partition, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=partition.topic, partition_data=[data])],
        )

        def ask(connection: Connection) -> ErrorCode:
            answer = connection.ask(9, request, ProduceResponse)
            return error_code(answer.responses[0].partition_responses[0].error_code)

        return ask_one(self._leader(partition), ask)

    def try_add_group(self, group: str) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return self._ask_coordinator(
            lambda connection: error_code(
                connection.ask(3, request, AddOffsetsToTxnResponse).error_code
            )
        )

    def try_commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> ErrorCode:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for key, offset in offsets.items():
            part = TxnOffsetCommitRequestPartition(
                partition_index=key.partition, committed_offset=offset
            )
            topics.setdefault(key.topic, []).append(part)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=t, partitions=p) for t, p in topics.items()],
        )

        def ask(connection: Connection) -> ErrorCode:
            answer = connection.ask(3, request, TxnOffsetCommitResponse)
            (code,) = {part.error_code for topic in answer.topics for part in topic.partitions}
            return error_code(code)

        return ask_one(find_coordinator(self.bootstrap, group, GROUP_KEY)[1], ask)

    def try_end(self, *, is_commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        return self._ask_coordinator(
            lambda connection: error_code(connection.ask(3, request, EndTxnResponse).error_code)
        )

    def refusal(self, attempt: Callable[[], ErrorCode]) -> ErrorCode:
        """Repeat the attempt while its answer is retried. Return the last answer."""
        answers: list[ErrorCode | Exception] = []

        def has_answer() -> bool:
            try:
                answers.append(attempt())
            except (OSError, ConnectionClosed, Unreachable) as error:
                answers.append(error)
            return isinstance(answers[-1], ErrorCode) and answers[-1] not in RETRIED

        try:
            wait_until(has_answer, what=f"an answer for {self.transactional_id}")
        except WaitFailed as error:
            error.add_note(f"the last answers: {answers[-3:]}")
            raise
        assert isinstance(answers[-1], ErrorCode)
        return answers[-1]

    def _until_done(self, attempt: Callable[[], ErrorCode], what: str) -> None:
        code = self.refusal(attempt)
        assert code is ErrorCode.NONE, f"{self.transactional_id}: {what}: {code.name}"

    def _ask_coordinator(self, ask: Callable[[Connection], ErrorCode]) -> ErrorCode:
        return ask_one(find_coordinator(self.bootstrap, self.transactional_id)[1], ask)

    def _leader(self, partition: TopicPartition) -> str:
        found: list[str] = []

        def ask(connection: Connection) -> ErrorCode:
            answer = metadata(connection, partition.topic)
            nodes = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
            for row in answer.topics[0].partitions:
                if row.partition_index == partition.partition and row.leader_id in nodes:
                    found.append(nodes[row.leader_id])
            return ErrorCode.NONE

        ask_any(self.bootstrap, ask)
        if not found:
            raise Unreachable(f"the leader of {partition}")
        return found[0]
