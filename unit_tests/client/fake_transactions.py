"""A fake transaction coordinator for `FakeBroker` with one transactional id, which refuses requests
on demand.

It follows the rules that a producer can observe: the epochs, and the answers in each state. It
writes no markers. `ends` has the outcomes of the transactions.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from pybroker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import NODE, FakeBroker

PRODUCER_ID = 9


@dataclass(slots=True)
class FakeCoordinator:
    """A coordinator of one transactional id; `attach` adds it to a broker. A test queues refusals
    for each API. Each request uses up one of them."""

    broker: FakeBroker
    refusals: dict[ApiKey, deque[ErrorCode]] = field(default_factory=lambda: defaultdict(deque))
    epoch: int = -1
    is_open: bool = False
    last_end: bool | None = None
    """The outcome of the last transaction, None in the first epoch and after its start."""
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    ends: list[bool] = field(default_factory=list)
    """Whether each transaction was committed, in their order."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets of committed transactions."""
    _open_offsets: dict[TopicPartition, int] = field(default_factory=dict)

    def attach(self) -> FakeCoordinator:
        self.broker.handlers |= {
            ApiKey.FIND_COORDINATOR: self._find,
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
            ApiKey.END_TXN: self._end,
        }
        return self

    def will(self, key: ApiKey, *codes: ErrorCode) -> None:
        self.refusals[key].extend(codes)

    def _refusal(self, key: ApiKey) -> ErrorCode:
        queue = self.refusals[key]
        return queue.popleft() if queue else ErrorCode.NONE

    def _fault(self, key: ApiKey, producer_id: int, epoch: int) -> ErrorCode:
        code = self._refusal(key)
        if code:
            return code
        if producer_id != PRODUCER_ID:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if epoch == self.epoch else ErrorCode.PRODUCER_FENCED

    def _find(self, request: Message) -> Message:
        assert isinstance(request, FindCoordinatorRequest)
        code = self._refusal(ApiKey.FIND_COORDINATOR)
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(
                    key=key, node_id=NODE, host="127.0.0.1", port=self.broker.port, error_code=code
                )
                for key in request.coordinator_keys
            ]
        )

    def _init(self, request: Message) -> Message:
        assert isinstance(request, InitProducerIdRequest)
        code = self._refusal(ApiKey.INIT_PRODUCER_ID)
        if not code and request.producer_epoch not in (-1, self.epoch):
            code = ErrorCode.PRODUCER_FENCED
        if code:
            return InitProducerIdResponse(error_code=code)
        if self.is_open:
            self._close(committed=False)
            return InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        self.epoch += 1
        self.last_end = None
        return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=self.epoch)

    def _add_partitions(self, request: Message) -> Message:
        assert isinstance(request, AddPartitionsToTxnRequest)
        assert not request.transactions, "only brokers send version 4"
        code = self._fault(
            ApiKey.ADD_PARTITIONS_TO_TXN, request.producer_id, request.producer_epoch
        )
        if not code:
            self.is_open = True
            self.partitions |= {
                TopicPartition(topic.name, number)
                for topic in request.topics
                for number in topic.partitions
            }
        return AddPartitionsToTxnResponse(
            results=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results=[
                        AddPartitionsToTxnPartitionResult(partition_index=number, error_code=code)
                        for number in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _add_offsets(self, request: Message) -> Message:
        assert isinstance(request, AddOffsetsToTxnRequest)
        code = self._fault(ApiKey.ADD_OFFSETS_TO_TXN, request.producer_id, request.producer_epoch)
        if not code:
            self.is_open = True
            self.groups.add(request.group_id)
        return AddOffsetsToTxnResponse(error_code=code)

    def _commit_offsets(self, request: Message) -> Message:
        assert isinstance(request, TxnOffsetCommitRequest)
        code = self._fault(ApiKey.TXN_OFFSET_COMMIT, request.producer_id, request.producer_epoch)
        if not code and request.group_id not in self.groups:
            code = ErrorCode.INVALID_TXN_STATE
        answer = TxnOffsetCommitResponse()
        for topic in request.topics:
            rows = TxnOffsetCommitResponseTopic(name=topic.name)
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                if not code:
                    self._open_offsets[key] = row.committed_offset
                rows.partitions.append(
                    TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=code
                    )
                )
            answer.topics.append(rows)
        return answer

    def _end(self, request: Message) -> Message:
        assert isinstance(request, EndTxnRequest)
        code = self._fault(ApiKey.END_TXN, request.producer_id, request.producer_epoch)
        if not code and self.is_open:
            self._close(committed=request.committed)
        elif not code and self.last_end is not request.committed:
            code = ErrorCode.INVALID_TXN_STATE
        return EndTxnResponse(error_code=code)

    def _close(self, *, committed: bool) -> None:
        if committed:
            self.offsets |= self._open_offsets
        self.is_open, self.last_end = False, committed
        self._open_offsets.clear()
        self.partitions.clear()
        self.groups.clear()
        self.ends.append(committed)
