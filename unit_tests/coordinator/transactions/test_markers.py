"""Tests of the sending of markers: there is one queue for each broker, and a marker is sent again
until its partition has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import pytest

from pybroker.applog.rate_limit import LogLimit
from pybroker.clock import ManualClock
from pybroker.coordinator.transactions.markers import (
    PARTITIONS_PER_REQUEST_MAX,
    Completion,
    MarkerSender,
)
from pybroker.errors import CoordError, ErrorCode
from pybroker.model import NO_LEADER, TopicPartition, TransactionMarker
from pybroker.ports import MarkerChannel
from unit_tests.idle_loop import idle

A, B, C = (TopicPartition("t", number) for number in range(3))


class Leaders:
    """Brokers that write markers, and a metadata that names the leaders."""

    def __init__(self) -> None:
        self.leader: dict[TopicPartition, int | None] = {A: 1, B: 1, C: 2}
        self.codes: dict[TopicPartition, list[ErrorCode]] = {}
        """Partition -> the codes of the next answers; NONE afterwards."""
        self.dead: set[int] = set()
        self.unreachable: set[int] = set()
        self.gone: set[TopicPartition] = set()
        self.zookeeper_fails = 0
        self.requests: list[tuple[int, list[TransactionMarker]]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.done: list[int] = []
        self.sender = MarkerSender(
            leader_of=lambda key: self.leader[key],
            channel_to=self._channel_to,
            deleted=self._deleted,
            log_limit=LogLimit(ManualClock()),
        )

    def _channel_to(self, broker_id: int) -> MarkerChannel | None:
        return None if broker_id in self.dead else _Channel(self, broker_id)

    async def _deleted(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        if self.zookeeper_fails:
            self.zookeeper_fails -= 1
            raise CoordError("no answer")
        return self.gone.intersection(partitions)

    def end(
        self, producer_id: int, *partitions: TopicPartition, is_commit: bool = True
    ) -> Completion:
        marker = TransactionMarker(producer_id, 0, is_commit, 4)
        completion = Completion(marker, partitions, lambda: self.done.append(producer_id))
        self.sender.send(completion)
        return completion

    def sent(self, broker_id: int) -> list[list[tuple[int, tuple[TopicPartition, ...]]]]:
        return [
            [(marker.producer_id, marker.partitions) for marker in markers]
            for to, markers in self.requests
            if to == broker_id
        ]


class _Channel:
    def __init__(self, leaders: Leaders, broker_id: int) -> None:
        self._leaders = leaders
        self._broker_id = broker_id

    async def write_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, ErrorCode]]:
        leaders = self._leaders
        leaders.requests.append((self._broker_id, list(markers)))
        await leaders.may_answer.wait()
        if self._broker_id in leaders.unreachable:
            raise OSError("the connection is lost")
        return [
            {
                key: leaders.codes[key].pop(0) if leaders.codes.get(key) else ErrorCode.NONE
                for key in marker.partitions
            }
            for marker in markers
        ]


async def settled(condition: Callable[[], bool]) -> None:
    """Let the loop's clock run until the condition is true."""
    for _ in range(200):
        await idle()
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the condition did not become true in ten seconds of the loop's clock")


async def test_each_leader_gets_its_partitions_and_the_end_is_reported_once() -> None:
    leaders = Leaders()
    completion = leaders.end(7, A, B, C, is_commit=False)
    await settled(lambda: leaders.done == [7])
    assert leaders.sent(1) == [[(7, (A, B))]]
    assert leaders.sent(2) == [[(7, (C,))]]
    [(_, [marker])] = [each for each in leaders.requests if each[0] == 2]
    assert (marker.producer_epoch, marker.is_commit, marker.coordinator_epoch) == (0, False, 4)
    completion.written([A])
    assert leaders.done == [7]
    await leaders.sender.stop()


async def test_markers_of_one_turn_and_of_a_request_in_flight_share_requests() -> None:
    leaders = Leaders()
    leaders.may_answer.clear()
    leaders.end(1, A)
    leaders.end(2, A, B)
    await idle()
    leaders.end(3, B)
    await idle()
    leaders.end(4, A)
    await idle()
    assert leaders.sent(1) == [[(1, (A,)), (2, (A, B))]]
    leaders.may_answer.set()
    await settled(lambda: len(leaders.done) == 4)
    assert leaders.sent(1)[1:] == [[(3, (B,)), (4, (A,))]]
    await leaders.sender.stop()


async def test_request_has_a_limited_number_of_partitions() -> None:
    leaders = Leaders()
    many = [TopicPartition("many", number) for number in range(2 * PARTITIONS_PER_REQUEST_MAX + 5)]
    leaders.leader |= dict.fromkeys(many, 1)
    leaders.end(1, *many)
    leaders.end(2, A)
    await settled(lambda: sorted(leaders.done) == [1, 2])
    sizes = [sum(len(keys) for _, keys in request) for request in leaders.sent(1)]
    assert max(sizes) == PARTITIONS_PER_REQUEST_MAX
    assert sum(sizes) == len(many) + 1
    await leaders.sender.stop()


RETRIED = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
]


@pytest.mark.parametrize("code", RETRIED)
async def test_failed_partition_is_repeated_at_its_present_leader(code: ErrorCode) -> None:
    leaders = Leaders()
    leaders.codes[B] = [code]
    leaders.end(7, A, B)
    await settled(lambda: len(leaders.requests) == 1)
    leaders.leader[B] = 2
    await settled(lambda: leaders.done == [7])
    assert leaders.sent(1) == [[(7, (A, B))]]
    assert leaders.sent(2) == [[(7, (B,))]]
    await leaders.sender.stop()


@pytest.mark.parametrize(
    "code", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION]
)
async def test_partition_without_transactional_records_needs_no_marker(code: ErrorCode) -> None:
    leaders = Leaders()
    leaders.codes[A] = [code]
    leaders.end(7, A)
    await settled(lambda: leaders.done == [7])
    assert len(leaders.requests) == 1
    await leaders.sender.stop()


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
async def test_fenced_coordinator_sends_no_further_marker(code: ErrorCode) -> None:
    leaders = Leaders()
    leaders.codes[A] = [code]
    leaders.unreachable.add(2)
    fenced = leaders.end(7, A, C)
    leaders.end(8, B)
    await settled(lambda: leaders.done == [8])
    assert fenced.is_over
    leaders.unreachable.clear()
    count = len(leaders.requests)
    await asyncio.sleep(1)
    assert leaders.sender.waiting == 0
    assert len(leaders.requests) == count
    assert leaders.done == [8]
    await leaders.sender.stop()


async def test_unreachable_and_dead_brokers_are_asked_until_they_answer() -> None:
    leaders = Leaders()
    leaders.unreachable.add(1)
    leaders.dead.add(2)
    leaders.end(7, A, C)
    await settled(lambda: len(leaders.requests) >= 3)
    assert leaders.done == []
    assert leaders.sent(2) == []
    leaders.unreachable.clear()
    leaders.dead.clear()
    await settled(lambda: leaders.done == [7])
    await leaders.sender.stop()


async def test_partition_without_a_leader_waits_and_blocks_no_other() -> None:
    leaders = Leaders()
    leaders.leader[A] = NO_LEADER
    leaders.end(7, A)
    leaders.end(8, B)
    await settled(lambda: leaders.done == [8])
    assert (leaders.sender.waiting, leaders.sender.without_leader) == (1, 1)
    leaders.leader[A] = 2
    assert (leaders.sender.waiting, leaders.sender.without_leader) == (1, 0)
    await settled(lambda: leaders.done == [8, 7])
    assert leaders.sender.waiting == 0
    await leaders.sender.stop()


async def test_deleted_partition_blocks_no_completion() -> None:
    leaders = Leaders()
    leaders.leader[A] = None
    leaders.gone.add(A)
    leaders.zookeeper_fails = 1
    leaders.end(7, A, B)
    await settled(lambda: leaders.done == [7])
    assert leaders.sent(1) == [[(7, (B,))]]
    await leaders.sender.stop()


async def test_partition_that_only_the_metadata_lacks_gets_its_marker() -> None:
    leaders = Leaders()
    leaders.leader[A] = None
    leaders.end(7, A)
    await asyncio.sleep(3)
    assert leaders.done == []
    assert leaders.sender.without_leader == 1
    leaders.leader[A] = 1
    await settled(lambda: leaders.done == [7])
    assert leaders.sent(1) == [[(7, (A,))]]
    await leaders.sender.stop()


async def test_transaction_without_partitions_is_complete_at_once() -> None:
    leaders = Leaders()
    leaders.end(7)
    assert leaders.done == [7]
    assert leaders.requests == []


async def test_cancelled_completion_is_never_reported() -> None:
    leaders = Leaders()
    leaders.may_answer.clear()
    completion = leaders.end(7, A)
    await idle()
    completion.cancel()
    leaders.may_answer.set()
    await idle()
    assert leaders.done == []
    await leaders.sender.stop()


async def test_stopped_sender_sends_nothing() -> None:
    leaders = Leaders()
    leaders.unreachable.add(1)
    leaders.end(7, A)
    await idle()
    await leaders.sender.stop()
    count = len(leaders.requests)
    leaders.end(8, B)
    await asyncio.sleep(1)
    assert len(leaders.requests) == count
