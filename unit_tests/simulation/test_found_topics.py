"""Tests of bugs with topics that are deleted and recreated, found by the simulation."""

from __future__ import annotations

import pytest

from pybroker.client import Admin, NewTopic, Producer
from pybroker.client.connection import Connection
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.records.builder import BatchBuilder
from pybroker.testing.simulation import ZOOKEEPER, Simulation
from pybroker.testing.simulation.view import controller_of, replica, stored_states
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from unit_tests.simulation.scenarios import PARTITION, read_all


async def create(bootstrap: str, replicas: list[int]) -> None:
    async with Admin(bootstrap) as admin:
        for result in await admin.create_topics([NewTopic("orders", assignments={0: replicas})]):
            result.check()


async def delete(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.delete_topics(["orders"])


async def produce(bootstrap: str, value: bytes, *counts: int) -> None:
    """Send batches with these numbers of records."""
    async with Producer(bootstrap, acks="all") as producer:
        for count in counts:
            for sent in [await producer.send("orders", value) for _ in range(count)]:
                await sent


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_of_a_deleted_topic_does_not_count_for_its_successor(seed: int) -> None:
    """The follower did not run during the deletion, and restarted before it received it. The
    follower was in sync for the recreated topic, and fetched from the new leader from the log end
    of the old topic on.
    """
    with Simulation(seed, config={"replica.lag.time.max.ms": 1000}) as simulation:
        cluster = simulation.cluster
        controller = controller_of(cluster)
        assert controller is not None
        leader, follower = sorted({1, 2, 3} - {controller.id})
        simulation.run(create, simulation.bootstrap, [leader, follower])
        simulation.run(produce, simulation.bootstrap, b"old", 2)
        simulation.cut(follower, [controller.id, ZOOKEEPER])
        simulation.wait(lambda: stored_states(cluster)[PARTITION].isr == (leader,))
        simulation.run(delete, simulation.bootstrap)
        simulation.wait(lambda: PARTITION not in stored_states(cluster))
        simulation.heal()
        simulation.cut(follower, [controller.id])
        registration = f"/brokers/ids/{follower}"
        simulation.wait(lambda: cluster.zookeeper.node(registration) is not None)
        simulation.pass_time(1)
        simulation.run(create, simulation.bootstrap, [leader, follower])
        assert stored_states(cluster)[PARTITION].isr == (leader, follower)
        writing = simulation.start(produce, simulation.bootstrap, b"new", 2, 1, 1)
        simulation.pass_time(3)
        here = replica(cluster, leader, PARTITION)
        assert here is not None
        assert here.high_watermark == 0
        simulation.heal()
        simulation.wait(lambda: not writing.is_running)
        simulation.kill(leader)
        simulation.pass_time(10)
        simulation.mend()
        values = simulation.run(read_all, simulation.bootstrap, 4)
    assert values == [b"new"] * 4


async def ask_for_one(bootstrap: str, broker: int, acks: int) -> ErrorCode:
    """Return the broker's answer to a Produce request for the topic, whether or not the broker
    leads.
    """
    port = int(bootstrap.split(",")[0].rpartition(":")[2])
    connection = await Connection.open(f"broker-{broker}", port, client_id="x", timeout_s=5)
    builder = BatchBuilder()
    builder.append(0, b"k", b"new")
    part = PartitionProduceData(index=0, records=bytes(builder.build()))
    topic = TopicProduceData(name="orders", partition_data=[part])
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
    try:
        answer = await connection.send(
            ApiKey.PRODUCE, request, ProduceResponse, timeout_s=5, version=8
        )
    finally:
        await connection.close()
    return error_code(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_leader_of_a_deleted_topic_accepts_nothing_for_its_successor(acks: int) -> None:
    """A leader that is the only replica continues to lead while ZooKeeper does not answer. But this
    broker had registered again, and the topic was recreated with the same broker as its leader.
    """
    with Simulation(0, config={"min.insync.replicas": 1}) as simulation:
        cluster = simulation.cluster
        controller = controller_of(cluster)
        assert controller is not None
        only = min({1, 2, 3} - {controller.id})
        simulation.run(create, simulation.bootstrap, [only])
        assert simulation.leader(*PARTITION) == only
        assert simulation.run(ask_for_one, simulation.bootstrap, only, acks) is ErrorCode.NONE
        simulation.cut(only, [controller.id, ZOOKEEPER])
        registration = f"/brokers/ids/{only}"
        simulation.wait(lambda: cluster.zookeeper.node(registration) is None)
        simulation.run(delete, simulation.bootstrap)
        simulation.wait(lambda: PARTITION not in stored_states(cluster))
        simulation.heal()
        simulation.cut(only, [controller.id])
        simulation.wait(lambda: cluster.zookeeper.node(registration) is not None)
        simulation.pass_time(1)
        simulation.run(create, simulation.bootstrap, [only])
        told = simulation.run(ask_for_one, simulation.bootstrap, only, acks)
        assert told is ErrorCode.NOT_LEADER_OR_FOLLOWER
        simulation.heal()
        simulation.wait(
            lambda: simulation.run(ask_for_one, simulation.bootstrap, only, acks) is ErrorCode.NONE
        )
        assert simulation.run(read_all, simulation.bootstrap, 1) == [b"new"]
