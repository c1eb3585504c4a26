"""Tests of partitions that wait for lost disks and damaged logs until an operator accepts the
loss.
"""

from __future__ import annotations

from pybroker.errors import StorageError
from pybroker.testing.simulation import Simulation
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.operator import repair
from pybroker.testing.simulation.view import is_healthy, leader_of, stored_states
from unit_tests.simulation.scenarios import (
    PARTITION,
    begin_with_empty_disks,
    create,
    produce,
    read_all,
)

_A_BIT_OF_A_VALUE = 8 * (10 * 69 + 66)
_EACH_SYNCED = {"log.flush.interval.messages": 1}


def test_a_partition_waits_for_its_last_disk_until_the_loss_is_accepted() -> None:
    """All brokers lose power, so that no replica is trusted. Only the last broker to restart counts
    for the committed records, and its disk is lost. The other brokers still have their synced
    records.
    """
    with Simulation(0, config=_EACH_SYNCED) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        cluster = simulation.cluster
        last = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.lose_power(broker)
        cluster.brokers[last].disk.replace_medium()
        for broker in {1, 2, 3} - {last}:
            simulation.start_broker(broker)
        simulation.wait(lambda: stored_states(cluster)[PARTITION].isr == (last,))
        _wait_for_the_operator(simulation)


def test_a_partition_waits_for_its_damaged_log_until_the_loss_is_accepted() -> None:
    """No other replica is in sync or eligible, and the damaged log may have records after the
    damaged range that other logs lack.
    """
    with Simulation(0, config=_EACH_SYNCED) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        cluster = simulation.cluster
        damaged = simulation.leader("orders", 0)
        simulation.kill(damaged)
        simulation.wait(lambda: damaged not in stored_states(cluster)[PARTITION].isr)
        path = f"/broker-{damaged}/data/orders-0/00000000000000000000.log"
        cluster.brokers[damaged].disk.flip(path, _A_BIT_OF_A_VALUE)
        for broker in {1, 2, 3} - {damaged}:
            simulation.lose_power(broker)
        _wait_for_the_operator(simulation)


def test_an_incomplete_copy_does_not_lead_until_the_loss_of_a_disk_is_accepted() -> None:
    """The new copy follows, and so seems to be available; but an incomplete copy must not lead, and
    no other replica counts.
    """
    with Simulation(0, config=_EACH_SYNCED) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        cluster = simulation.cluster
        leader = simulation.leader("orders", 0)
        other, last = (cluster.brokers[(leader + step) % 3 + 1] for step in (0, 1))
        simulation.kill(other.id)
        simulation.wait(lambda: other.id not in stored_states(cluster)[PARTITION].isr)
        begin_with_empty_disks(simulation, leader, [last])
        simulation.lose_power(leader)
        _wait_for_the_operator(simulation)


def test_a_leader_with_a_damaged_range_serves_until_the_loss_is_accepted() -> None:
    """The leader serves the intact records, and followers cannot copy the damaged range."""
    config = {"min.insync.replicas": 1, "pybroker.log.scrub.io.max.bytes.per.second": 0}
    with Simulation(0, config=config) as simulation:
        cluster = simulation.cluster
        simulation.run(create, simulation.bootstrap)
        leader = cluster.brokers[simulation.leader("orders", 0)]
        others = cluster.brokers.keys() - {leader.id}
        for broker in others:
            simulation.kill(broker)
        simulation.wait(lambda: stored_states(cluster)[PARTITION].isr == (leader.id,))
        simulation.run(produce, simulation.bootstrap, 20)
        path = f"/broker-{leader.id}/data/orders-0/00000000000000000000.log"
        leader.disk.flip(path, _A_BIT_OF_A_VALUE)
        simulation.mend()
        simulation.pass_time(20)
        assert leader_of(cluster, "orders", 0) is leader
        repair(cluster)
        simulation.wait(lambda: is_healthy(cluster))
        assert simulation.run(produce, simulation.bootstrap, 1) == [10]


def test_a_broker_that_found_a_full_disk_at_its_start_is_restarted() -> None:
    """The broker leaves the log directory offline until a restart, also when the disk has room."""
    with SimCluster(Environment("full"), log_dirs=2) as cluster:
        cluster.start()
        assert cluster.run_until_ready()
        broker = cluster.brokers[1]
        assert broker.rooms is not None
        full = StorageError("write /data-2/pybroker.boot.tmp: No space left on device")
        broker.rooms.logs._directories.all[1].failure = full
        for _ in range(2):
            repair(cluster)
            assert cluster.run_until_ready()
        assert broker.rooms is not None
        assert not broker.rooms.logs.failed_directories


def _wait_for_the_operator(simulation: Simulation) -> None:
    """Restart all brokers, and check that the partition still waits. After the operator accepts the
    loss, check that the acknowledged records exist.
    """
    cluster = simulation.cluster
    simulation.mend()
    simulation.pass_time(20)
    assert leader_of(cluster, "orders", 0) is None
    repair(cluster)
    simulation.wait(lambda: is_healthy(cluster))
    values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]
