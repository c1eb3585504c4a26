"""Tests that a wait for a partition without a leader ends with an error that names the
partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pybroker.client import Consumer
from pybroker.client.errors import (
    BufferExhausted,
    DeadlinePassed,
    DeliveryFailed,
    ResponseError,
)
from pybroker.client.metadata import ClusterView, Node, PartitionInfo, TopicInfo
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID, TopicPartition
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.held_logs import T0, consumer
from unit_tests.client.test_producer import producer
from unit_tests.patience import in_time

NO_LEADER_TEXT = r"t-0 has no leader \(its replicas: 1; in sync: 1\)"
SHORT = {"linger_ms": 0, "request_timeout_ms": 100, "delivery_timeout_ms": 150}


def view(leader: int, *, offline: tuple[int, ...] = ()) -> ClusterView:
    info = PartitionInfo(T0, ErrorCode.NONE, leader, 3, (1, 2), (2,), offline)
    topic = TopicInfo("t", ErrorCode.NONE, NO_TOPIC_ID, False, {0: info})
    return ClusterView(nodes={1: Node(1, "h", 1)}, topics={"t": topic})


def test_the_problem_names_the_partition_and_its_replicas() -> None:
    assert view(1).leader_problem(T0) == ""
    assert view(-1).leader_problem(T0) == "t-0 has no leader (its replicas: 1, 2; in sync: 2)"
    found = view(-1, offline=(2,)).leader_problem(T0)
    assert found == "t-0 has no leader (its replicas: 1, 2; in sync: 2; offline: 2)"
    assert (
        view(7).leader_problem(T0)
        == "the leader of t-0, broker 7, is not among the live brokers in the metadata"
    )
    assert view(-1).leader_problem(TopicPartition("t", 1)) == ""


async def test_an_expired_record_names_its_partition_without_a_leader() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.without_leader = True
        async with producer(broker, **SHORT) as target:
            delivery = await target.send("t", b"x")
            with pytest.raises(DeliveryFailed, match=f"=150 has passed; {NO_LEADER_TEXT}$"):
                await in_time(delivery)


async def test_full_memory_names_the_partition_without_a_leader() -> None:
    async with FakeBroker({"t": 2}) as broker:
        broker.without_leader = True
        options = {"buffer_memory": 600, "max_request_size": 500, "max_block_ms": 50}
        async with producer(broker, **SHORT, **options) as target:
            await target.send("t", b"x" * 200, partition=0)
            await target.send("t", b"x" * 200, partition=1)
            with pytest.raises(
                BufferExhausted, match=f"; {NO_LEADER_TEXT}; and 1 more partitions$"
            ):
                await target.send("t", b"x" * 400)


ASKING: dict[str, Callable[[Consumer], Awaitable[object]]] = {
    "end_offsets": lambda target: target.end_offsets([T0]),
    "beginning_offsets": lambda target: target.beginning_offsets([T0]),
    "offsets_for_times": lambda target: target.offsets_for_times({T0: 0}),
    "seek_to_time": lambda target: target.seek_to_time(0, T0),
}


@pytest.mark.parametrize("name", ASKING)
async def test_a_failed_look_up_names_the_partition_without_a_leader(name: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.without_leader = True
        async with consumer(broker, default_api_timeout_ms=150) as target:
            target.assign([T0])
            with pytest.raises(ResponseError, match=NO_LEADER_TEXT):
                await in_time(ASKING[name](target))


async def test_an_unknown_position_names_the_partition_without_a_leader() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.without_leader = True
        async with consumer(broker, default_api_timeout_ms=150) as target:
            target.assign([T0, TopicPartition("t", 4), TopicPartition("nosuch", 0)])
            with pytest.raises(
                DeadlinePassed, match=f"could not find the position of t-0 .*; {NO_LEADER_TEXT}$"
            ):
                await in_time(target.position(T0))
            for key in (TopicPartition("t", 4), TopicPartition("nosuch", 0)):
                with pytest.raises(DeadlinePassed, match="; UNKNOWN_TOPIC_OR_PARTITION: "):
                    await in_time(target.position(key))
