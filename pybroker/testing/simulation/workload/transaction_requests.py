"""A transactional producer that can also send what a correct client never sends: requests of a
fenced producer, and batches that arrive too late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Address, Cluster
from pybroker.client.errors import ClientError, DeadlinePassed, ResponseError
from pybroker.client.metadata import error_code
from pybroker.client.options import ClientOptions, parse_options
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.testing.simulation.workload.options import CLIENT_OPTIONS
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
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
from pybroker.wire.schema import Message

AnswerT = TypeVar("AnswerT", bound=Message)
Settled = Callable[[int, int | BaseException], None]
"""A function that `produce` calls once for each of the values. It gets the place of the value among
the values, and the value's offset or error. The offset is negative if the response has none."""

GROUP: Final = 0
TRANSACTION: Final = 1
ADD_PARTITIONS_VERSION_MAX: Final = 3
"""The highest version of AddPartitionsToTxn for clients; only brokers send version 4."""
_ONE_KEY_VERSION: Final = 3
"""A version of FindCoordinator with one key in a request."""
_REQUEST_S: Final = 2.5
_LIMIT_MS: Final = 5_000
"""The time limit of an operation with its retries."""
_LOST: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
REFUSALS: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Error codes that show two things: the broker has not processed the request, and the producer
cannot continue its transaction."""


class TransactionalProducer:
    """A producer with a transactional id. Requests are repeated after retriable errors for up to 5
    s. Methods raise ClientError. The error is a ResponseError if the broker's error code is not
    retriable. The error's `definite` is False if a broker may have processed the request."""

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        timeout_ms: int,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        codecs: Sequence[str],
    ) -> None:
        """Create a producer. `timeout_ms` is the transaction timeout. Each batch has one of
        `codecs`."""
        options = parse_options(
            ClientOptions,
            {"bootstrap_servers": bootstrap, "client_id": client_id, **CLIENT_OPTIONS},
        )
        self._cluster = Cluster(options, clock=clock, rng=rng)
        self._rng = rng
        self._codecs = codecs
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._lost: Address | None = None

    async def start(self) -> None:
        """Connect to one of the bootstrap brokers. Raises ClientError."""
        await self._cluster.start()

    async def close(self) -> None:
        await self._cluster.close()

    # the transactional id

    async def identify(self, *, keep: bool = False) -> None:
        """Get the next producer epoch of the transactional id (InitProducerId). This aborts the
        open transaction. With `keep` the request has the present producer id and epoch
        (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if keep else -1,
            producer_epoch=self.epoch if keep else -1,
        )
        answer = await self._ask(
            (TRANSACTION, self.transactional_id),
            ApiKey.INIT_PRODUCER_ID,
            request,
            InitProducerIdResponse,
            lambda answer: [answer.error_code],
        )
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def begin(self) -> None:
        """Do nothing: the coordinator begins the transaction when the first partition or group is
        added."""

    async def add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Add the partitions to the open transaction. If there is none, begin one."""
        request = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in _by_topic(partitions).items()
            ],
        )
        await self._ask(
            (TRANSACTION, self.transactional_id),
            ApiKey.ADD_PARTITIONS_TO_TXN,
            request,
            AddPartitionsToTxnResponse,
            lambda answer: [row.error_code for topic in answer.results for row in topic.results],
            version=ADD_PARTITIONS_VERSION_MAX,
        )

    async def add_offsets(self, group: str) -> None:
        """Add the group's partition of __consumer_offsets to the transaction."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        await self._ask(
            (TRANSACTION, self.transactional_id),
            ApiKey.ADD_OFFSETS_TO_TXN,
            request,
            AddOffsetsToTxnResponse,
            lambda answer: [answer.error_code],
        )

    async def end(self, *, is_commit: bool) -> None:
        """Commit or abort the transaction."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        await self._ask(
            (TRANSACTION, self.transactional_id),
            ApiKey.END_TXN,
            request,
            EndTxnResponse,
            lambda answer: [answer.error_code],
        )

    # records and offsets

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """In the transaction, commit offsets of a group that has no members (TxnOffsetCommit)."""
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (topic, number), offset in offsets.items():
            rows = topics.setdefault(topic, TxnOffsetCommitRequestTopic(name=topic)).partitions
            rows.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offset, committed_metadata=""
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[*topics.values()],
        )
        await self._ask(
            (GROUP, group),
            ApiKey.TXN_OFFSET_COMMIT,
            request,
            TxnOffsetCommitResponse,
            lambda answer: [row.error_code for topic in answer.topics for row in topic.partitions],
        )

    def _batch(self, partition: TopicPartition, values: Sequence[str]) -> bytes:
        """Return the next batch of the partition, with the next sequence numbers."""
        builder = BatchBuilder(Codec[self._rng.choice(self._codecs).upper()])
        for value in values:
            builder.append(self._cluster.clock.wall_ms(), None, value.encode())
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        return builder.build(self.producer_id, self.epoch, sequence, transactional=True)

    async def produce(
        self,
        partition: TopicPartition,
        values: Sequence[str],
        settled: Settled,
        *,
        once: bool = False,
    ) -> None:
        """Append the values as one batch. With `once` the request is not repeated. Raises
        ClientError."""
        try:
            offset = await self._append(partition, self._batch(partition, values), once=once)
        except ClientError as error:
            for place in range(len(values)):
                settled(place, error)
            raise
        for place in range(len(values)):
            settled(place, offset + place if offset >= 0 else offset)

    async def _append(self, partition: TopicPartition, batch: bytes, *, once: bool) -> int:
        topic, number = partition
        data = PartitionProduceData(index=number, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=int(1000 * _REQUEST_S),
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        deadline = Deadline(self._cluster.clock, _LIMIT_MS)
        is_definite, failures = True, 0
        while True:
            try:
                return await self._produce_once(partition, request, deadline)
            except ClientError as error:
                is_definite = is_definite and _is_refusal(error)
                failures += 1
                if once or not error.retriable:
                    error.definite = is_definite
                    raise
                await self._pause(failures, deadline, error, is_definite)
            try:
                await self._cluster.refreshed(deadline.remaining_s())
            except (TimeoutError, ClientError):
                pass

    async def _produce_once(
        self, partition: TopicPartition, request: ProduceRequest, deadline: Deadline
    ) -> int:
        await self._cluster.topic(partition.topic, deadline)
        leader = self._cluster.view.leader(partition)
        if leader is None:
            raise ResponseError(ErrorCode.LEADER_NOT_AVAILABLE)
        connection = await self._cluster.connection(leader)
        answer = await connection.send(
            ApiKey.PRODUCE, request, ProduceResponse, timeout_s=_REQUEST_S
        )
        (row,) = answer.responses[0].partition_responses
        if row.error_code:
            raise ResponseError(error_code(row.error_code))
        return row.base_offset

    # requests to coordinators

    async def _ask(
        self,
        coordinated: tuple[int, str],
        key: ApiKey,
        request: Message,
        answer: type[AnswerT],
        codes_of: Callable[[AnswerT], Sequence[int]],
        *,
        version: int | None = None,
    ) -> AnswerT:
        """Send the request to the coordinator of a group or transactional id, and return the
        answer. Repeat the request after retriable errors for up to 5 s. Raises ClientError."""
        deadline = Deadline(self._cluster.clock, _LIMIT_MS)
        failures = 0
        while True:
            try:
                return await self._ask_once(coordinated, key, request, answer, codes_of, version)
            except ClientError as error:
                failures += 1
                is_first = failures == 1 and _is_refusal(error)
                if not error.retriable:
                    error.definite = is_first  # a request before may have succeeded
                    raise
                await self._pause(failures, deadline, error, is_first)

    async def _ask_once(
        self,
        coordinated: tuple[int, str],
        key: ApiKey,
        request: Message,
        answer: type[AnswerT],
        codes_of: Callable[[AnswerT], Sequence[int]],
        version: int | None,
    ) -> AnswerT:
        try:
            address = self._coordinators.get(coordinated) or await self._find(coordinated)
            connection = await self._cluster.connect(address)
            given = await connection.send(
                key, request, answer, timeout_s=_REQUEST_S, version=version
            )
        except ClientError as error:
            if not isinstance(error, ResponseError):
                self._lost = self._coordinators.pop(coordinated, None)
            raise
        for code in map(error_code, codes_of(given)):
            if code in _LOST:
                self._lost = self._coordinators.pop(coordinated, None)
            if code is not ErrorCode.NONE:
                raise ResponseError(code)
        return given

    async def _find(self, coordinated: tuple[int, str]) -> Address:
        kind, name = coordinated
        connection = await self._cluster.any_connection(last=self._lost)
        found = await connection.send(
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorRequest(key=name, key_type=kind),
            FindCoordinatorResponse,
            timeout_s=_REQUEST_S,
            version=_ONE_KEY_VERSION,
        )
        if found.error_code:
            raise ResponseError(error_code(found.error_code))
        self._coordinators[coordinated] = (found.host, found.port)
        return found.host, found.port

    async def _pause(
        self, failures: int, deadline: Deadline, error: ClientError, is_definite: bool
    ) -> None:
        pause_s = self._cluster.pause_s(failures)
        if deadline.remaining_s() <= pause_s:
            raise DeadlinePassed(str(error), definite=is_definite) from error
        await asyncio.sleep(pause_s)


def _is_refusal(error: ClientError) -> bool:
    """Return whether the error shows that the broker has not processed the request."""
    if isinstance(error, ResponseError):
        return error.code in REFUSALS
    return error.definite


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found
