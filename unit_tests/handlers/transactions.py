"""Shared functions of the tests of transactions: a fake coordinator, and the requests of producers
and coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.replication.leader_state import FollowerFetch
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.produce import PartitionProduceResponse
from pybroker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from unit_tests.handlers.bench import (
    BROKER_ID,
    LISTENER,
    Bench,
    batch,
    code,
    produce_request,
    the_only,
)

PRODUCER = 7
TRANSACTIONAL_ID = "tx"
FOLLOWER = 2


class FakeCoordinator:
    """A `TransactionVerifier`. `answer` is the code of every partition, or an error of the whole
    request. If `held` is set, each verification waits for it. If `is_here` is set, `verify_at_once`
    answers."""

    def __init__(self) -> None:
        self.answer: ErrorCode | BrokerError = ErrorCode.NONE
        self.asked: list[tuple[str, int, int, list[TopicPartition]]] = []
        self.held: asyncio.Event | None = None
        self.is_here = False

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions)))
        answer = self.answer
        if self.held is not None:
            await self.held.wait()
        if isinstance(answer, BrokerError):
            raise answer
        return dict.fromkeys(partitions, answer) if answer else {}

    def verify_at_once(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        answer = self.answer
        if not self.is_here:
            return None
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions)))
        if isinstance(answer, BrokerError):
            raise answer
        return dict.fromkeys(partitions, answer) if answer else {}


def coordinator_of(bench: Bench) -> FakeCoordinator:
    """Give the broker a fake coordinator, and return it."""
    fake = FakeCoordinator()
    bench.app.verifying.verification.verifier = fake
    return fake


async def produce_in(
    bench: Bench,
    *batches: bytes,
    topic: str = "t",
    acks: int = -1,
    version: int = 9,
    transactional_id: str | None = TRANSACTIONAL_ID,
) -> list[PartitionProduceResponse]:
    """Send the batches to the partitions 0, 1, ... in one request of a transactional producer."""
    request = produce_request(topic, dict(enumerate(batches)), acks=acks)
    request.transactional_id = transactional_id
    answer = await bench.ask(ApiKey.PRODUCE, version, request)
    return list(the_only(answer.responses).partition_responses)


def of(
    bench: Bench, *values: bytes, sequence: int = 0, producer: int = PRODUCER, epoch: int = 0
) -> bytes:
    """Return a transactional batch with the present time as its timestamp. A marker with a much
    later timestamp would begin a new segment."""
    now_ms = bench.clock.wall_ms()
    return batch(
        *values, timestamp=now_ms, producer=(producer, epoch, sequence), transactional=True
    )


async def put(
    bench: Bench, sequence: int = 0, *, producer: int = PRODUCER, epoch: int = 0, count: int = 1
) -> ErrorCode:
    """Send a transactional batch to t-0, and return the code."""
    values = [b"%d" % number for number in range(sequence, sequence + count)]
    data = of(bench, *values, sequence=sequence, producer=producer, epoch=epoch)
    return code(the_only(await produce_in(bench, data)))


def marker_request(
    *topics: tuple[str, list[int]],
    commit: bool = True,
    producer: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 0,
) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer,
                producer_epoch=epoch,
                transaction_result=commit,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
                    for name, numbers in topics
                ],
                coordinator_epoch=coordinator_epoch,
            )
        ]
    )


def codes_of(answer: WriteTxnMarkersResponse) -> list[ErrorCode]:
    """Return the codes of all partitions, in the order of the response."""
    return [
        code(row)
        for marker in answer.markers
        for topic in marker.topics
        for row in topic.partitions
    ]


async def end(
    bench: Bench,
    *,
    commit: bool = True,
    producer: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    listener: str = LISTENER,
) -> ErrorCode:
    """Write a marker to t-0 as a coordinator does, and return the code."""
    request = marker_request(
        ("t", [0]),
        commit=commit,
        producer=producer,
        epoch=epoch,
        coordinator_epoch=coordinator_epoch,
    )
    answer = await bench.ask(ApiKey.WRITE_TXN_MARKERS, 1, request, listener=listener)
    return the_only(codes_of(answer))


async def share(bench: Bench, epoch: int = 1, *, leader: int = BROKER_ID) -> None:
    """Make this broker the leader of t-0, with a follower in the ISR."""
    key = TopicPartition("t", 0)
    facts = PartitionFacts(
        key,
        bench.app.metadata.topics["t"].topic_id,
        PartitionState(leader, epoch, (BROKER_ID, FOLLOWER), 1),
        1,
        (BROKER_ID, FOLLOWER),
    )
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    assert await bench.app.replicas.leader_and_isr(command) == {key: ErrorCode.NONE}


def replicate(bench: Bench, offset: int) -> None:
    """Note a fetch of the follower at `offset` of t-0, which shows that it has all earlier
    records."""
    partition = bench.app.replicas.partition(TopicPartition("t", 0))
    fetch = FollowerFetch(FOLLOWER, offset, 0, -1)
    bench.app.replicas.follower_fetched(partition, fetch, bench.clock.monotonic())
