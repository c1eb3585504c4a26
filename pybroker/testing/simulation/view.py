"""Queries for the state of a simulated cluster: leaders, controller, and partition states in
ZooKeeper."""

from __future__ import annotations

from typing import Final

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import decode_state
from pybroker.model import NO_EPOCH, PartitionState, TopicPartition
from pybroker.replication.partition import Partition
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import SimCluster

_STATE: Final = "/state"


def stored_states(cluster: SimCluster) -> dict[TopicPartition, PartitionState]:
    """Return the state of each partition in ZooKeeper."""
    zookeeper = cluster.zookeeper
    found = {}
    for path in zookeeper.nodes():
        if path.startswith(paths.TOPICS) and path.endswith(_STATE):
            _, _, _, topic, _, number, _ = path.split("/")
            node = zookeeper.node(path)
            assert node is not None
            found[TopicPartition(topic, int(number))] = decode_state(path, node[0])
    return found


def replica(cluster: SimCluster, broker: int, key: TopicPartition) -> Partition | None:
    """Return the broker's replica of the partition. Return None if the broker is stopped or still
    starting, or if it has no replica of the partition."""
    running = cluster.brokers.get(broker)
    if running is None or running.app is None or not running.serves:
        return None
    return running.app.replicas.partitions.get(key)


def is_healthy(cluster: SimCluster) -> bool:
    """Return whether no replica is damaged, all brokers are in every ISR, and each partition has
    the leader and the leader epoch that are in ZooKeeper."""
    apps = [each.app for each in _running(cluster)]
    if any(app is not None and app.unhealthy_replicas.waiting for app in apps):
        return False
    return all(
        len(state.isr) == len(cluster.brokers)
        and (leader := replica(cluster, state.leader, key)) is not None
        and leader.is_leader
        and leader.leader_epoch == state.leader_epoch
        for key, state in stored_states(cluster).items()
    )


def _running(cluster: SimCluster) -> list[SimBroker]:
    return [each for each in cluster.brokers.values() if each.is_running]


def leader_of(cluster: SimCluster, topic: str, partition: int) -> SimBroker | None:
    """Return the running broker that acts as the partition's leader in the latest leader epoch."""
    found, epoch = None, NO_EPOCH
    for broker in cluster.brokers.values():
        if broker.app is None:
            continue
        mine = broker.app.replicas.partitions.get(TopicPartition(topic, partition))
        if mine is not None and mine.is_leader and mine.leader_epoch > epoch:
            found, epoch = broker, mine.leader_epoch
    return found


def controller_of(cluster: SimCluster) -> SimBroker | None:
    """Return the running broker that acts as the controller, None if there is none. If several
    brokers act as the controller, return the one with the latest controller epoch."""
    active = [
        broker
        for broker in cluster.brokers.values()
        if broker.app is not None and broker.app.controller.is_active
    ]
    return max(active, key=_controller_epoch, default=None)


def _controller_epoch(broker: SimBroker) -> int:
    assert broker.app is not None
    return broker.app.controller.epoch
