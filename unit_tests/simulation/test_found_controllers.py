"""Tests of bugs of the controller that the simulation has found. `test_found.py` has the bugs of
the broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pybroker.client import Admin, NewTopic, Producer
from pybroker.client.connection import Connection
from pybroker.errors import ErrorCode
from pybroker.replication.authority import Authority
from pybroker.testing.simulation import ZOOKEEPER, Simulation
from pybroker.testing.simulation.links import Delay
from pybroker.testing.simulation.view import controller_of, replica, stored_states
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from unit_tests.simulation import scenarios
from unit_tests.simulation.scenarios import PARTITION, produce, read_all


async def create(bootstrap: str, topics: dict[str, list[int]]) -> None:
    """Create topics with one partition each on those brokers; the first is the preferred leader."""
    async with Admin(bootstrap) as admin:
        wanted = [NewTopic(name, assignments={0: brokers}) for name, brokers in topics.items()]
        for result in await admin.create_topics(wanted):
            result.check()


async def append(bootstrap: str, topics: Iterable[str]) -> None:
    """Append with acks=1."""
    async with Producer(bootstrap, acks=1) as producer:
        for topic in topics:
            await (await producer.send(topic, b"more"))


async def elect(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.elect_leaders(partitions=[PARTITION])


async def latest(bootstrap: str, broker: int) -> ListOffsetsPartitionResponse:
    """Return that broker's answer to ListOffsets latest, whether or not the broker leads."""
    wanted = ListOffsetsPartition(partition_index=PARTITION.partition, timestamp=-1)
    topic = ListOffsetsTopic(name=PARTITION.topic, partitions=[wanted])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])
    port = int(bootstrap.split(",")[0].rpartition(":")[2])
    connection = await Connection.open(f"broker-{broker}", port, client_id="x", timeout_s=5)
    try:
        answer = await connection.send(
            ApiKey.LIST_OFFSETS, request, ListOffsetsResponse, timeout_s=5, version=5
        )
    finally:
        await connection.close()
    return answer.topics[0].partitions[0]


def expire(simulation: Simulation, broker: int) -> None:
    zookeeper = simulation.cluster.zookeeper
    client = zookeeper.client(f"broker-{broker}")
    assert client is not None
    zookeeper.expire(client.session_id)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_stops_before_a_new_controller_sent_all_roles_keeps_its_log(
    seed: int,
) -> None:
    """The broker was told to stop the replica, and then received all its roles without the
    partition. It renamed the log while its replica still counted as in sync. When it restarted
    first, it led with an empty log.
    """
    config = {
        "min.insync.replicas": 3,  # who is out of sync stays eligible
        "replica.lag.time.max.ms": 1000,
        "controlled.shutdown.retry.backoff.ms": 5000,
    }
    with Simulation(seed, config=config) as simulation:
        cluster = simulation.cluster
        controller = controller_of(cluster)
        assert controller is not None
        first, (leader, stops) = controller.id, sorted({1, 2, 3} - {controller.id})
        topics = {"orders": [leader, stops, first], "held-for-long": [stops, leader, first]}
        simulation.run(create, simulation.bootstrap, topics)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.cut(stops, [leader])
        simulation.run(append, simulation.bootstrap, topics)
        simulation.wait(lambda: {len(each.isr) for each in stored_states(cluster).values()} == {2})
        simulation.cut(stops, [ZOOKEEPER])
        expire(simulation, first)
        simulation.wait(lambda: controller_of(cluster) is cluster.brokers[leader])
        simulation.kill(first)
        simulation.heal()
        simulation.cut(stops, [leader])
        simulation.wait(lambda: {len(each.isr) for each in stored_states(cluster).values()} == {1})
        simulation.pass_time(1)  # so that it knows the new controller
        cluster.links.slow(f"broker-{leader}", f"broker-{stops}", Delay(least_s=0.1))
        simulation.heal()
        cluster.brokers[stops].terminate()  # and hold on, as nobody else can lead the other topic
        simulation.pass_time(3)
        for broker in (stops, leader):
            simulation.kill(broker)
        simulation.pass_time(5)
        simulation.start_broker(stops)
        simulation.pass_time(5)
        simulation.mend()
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_a_replaced_leader_returns_no_end_after_its_successor_wrote(seed: int) -> None:
    """The followers of the old leader had all records, and clients wrote no more. The leader had no
    reason to write the state node, and returned the old end as long as the controller could not
    reach it.
    """
    lag_s = 2.0
    config = {"replica.lag.time.max.ms": int(lag_s * 1000)}
    with Simulation(seed, config=config) as simulation:
        cluster = simulation.cluster
        controller = controller_of(cluster)
        assert controller is not None
        preferred, leader = sorted({1, 2, 3} - {controller.id})
        topics = {"orders": [preferred, leader, controller.id]}
        simulation.run(create, simulation.bootstrap, topics)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.stop(preferred)
        simulation.start_broker(preferred)
        simulation.pass_time(3)
        replaced, clock = replica(cluster, leader, PARTITION), cluster.brokers[leader].machine.clock
        assert replaced is not None
        simulation.cut(leader, [controller.id])
        simulation.run(elect, simulation.bootstrap)
        assert stored_states(cluster)[PARTITION].leader == preferred
        assert replaced.is_leader
        assert replaced.certainly_leads(clock.monotonic(), lag_s)
        simulation.run(produce, simulation.bootstrap, 1)
        assert replaced.is_leader
        assert replaced.granted is Authority.READ or not replaced.certainly_leads(
            clock.monotonic(), lag_s
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_stopping_leader_returns_no_end_after_its_successor_wrote(seed: int) -> None:
    """The new leader does not wait for the stopping broker, which is no longer in the stored ISR.
    The controller may be unable to reach the stopping broker during its controlled shutdown.
    """
    with Simulation(seed) as simulation:
        cluster = simulation.cluster
        controller = controller_of(cluster)
        assert controller is not None
        leader, other = sorted({1, 2, 3} - {controller.id})
        topics = {"orders": [leader, other, controller.id]}
        simulation.run(create, simulation.bootstrap, topics)
        simulation.run(produce, simulation.bootstrap, 20)
        cluster.brokers[leader].terminate()
        simulation.wait(lambda: stored_states(cluster)[PARTITION].leader != leader)
        simulation.cut(leader, [controller.id])
        simulation.run(produce, simulation.bootstrap, 1)
        answer = simulation.run(latest, simulation.bootstrap, leader)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("seed", (0, 2))
@pytest.mark.parametrize("settled_s", (34, 40, 44))
def test_a_leader_with_free_space_again_returns_no_end_after_its_successor_wrote(
    seed: int, settled_s: float
) -> None:
    """Another leader was elected before the old leader had free space, and the controller cannot
    reach the old leader. The time of the old leader's next check depends on the time of its last
    check.
    """
    with Simulation(seed) as simulation:
        cluster = simulation.cluster
        controller = controller_of(cluster)
        assert controller is not None
        leader, other = sorted({1, 2, 3} - {controller.id})
        topics = {"orders": [leader, other, controller.id]}
        simulation.run(create, simulation.bootstrap, topics)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.pass_time(settled_s)
        disk, app = cluster.brokers[leader].disk, cluster.brokers[leader].app
        assert app is not None
        disk.capacity = disk.used_bytes + 10
        simulation.start(append, simulation.bootstrap, ["orders"])
        simulation.wait(lambda: stored_states(cluster)[PARTITION].leader != leader)
        simulation.cut(leader, [controller.id])
        disk.capacity = None
        simulation.run(produce, simulation.bootstrap, 1)
        simulation.wait(lambda: not app.replicas.leadership_yield.reasons)
        answer = simulation.run(latest, simulation.bootstrap, leader)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_applies_the_options_of_a_new_topic_although_its_zookeeper_lags(seed: int) -> None:
    """The controller sent the topic to the broker before the broker's ZooKeeper member had the
    topic's options. The broker used its defaults, and deleted records that had to be kept, until an
    option was changed.
    """
    with Simulation(seed, config={"log.retention.bytes": 0}) as simulation:
        cluster = simulation.cluster
        for member in cluster.zookeeper.members:
            if member != cluster.zookeeper.leader:
                cluster.zookeeper.lag(member, 1.0)
        configs = {"retention.bytes": "-1", "min.insync.replicas": "3"}
        simulation.run(scenarios.create, simulation.bootstrap, configs)
        simulation.wait(lambda: all(replica(cluster, each, PARTITION) for each in (1, 2, 3)))
        for broker in (1, 2, 3):
            here = replica(cluster, broker, PARTITION)
            assert here is not None
            config = here.log.config
            assert (config.retention_bytes, config.min_insync_replicas) == (-1, 3), broker
