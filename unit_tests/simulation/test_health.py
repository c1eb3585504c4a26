"""Tests of the readiness page: brokers report unhealthy replicas after injected faults."""

from __future__ import annotations

from pybroker.admin.readiness import conditions
from pybroker.admin.view import BrokerView, Phase, Rooms
from pybroker.config.broker_config import BrokerConfig
from pybroker.storage.replica_health import Health
from pybroker.testing.simulation import Simulation
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.operator import repair
from pybroker.testing.simulation.view import controller_of, is_healthy, stored_states
from unit_tests.simulation.scenarios import PARTITION, create, produce

FIRST_VALUE_BIT = 8 * 66


def rooms(broker: SimBroker) -> Rooms:
    assert broker.rooms is not None
    return broker.rooms


def _view(broker: SimBroker) -> BrokerView:
    return BrokerView(BrokerConfig(), Phase.RUNNING, rooms(broker))


async def faults(broker: SimBroker) -> dict[str, str]:
    """Return condition -> problem, for the failed conditions of readiness."""
    return {each.name: each.fault for each in await conditions(_view(broker)) if not each.holds}


def test_a_damaged_replica_that_stays_leader_is_reported() -> None:
    config = {"min.insync.replicas": 1, "pybroker.log.scrub.io.max.bytes.per.second": 0}
    with Simulation(0, config=config) as simulation:
        cluster = simulation.cluster
        simulation.run(create, simulation.bootstrap)
        leader = cluster.brokers[simulation.leader("orders", 0)]
        for broker in cluster.brokers.keys() - {leader.id}:
            simulation.kill(broker)
        simulation.wait(lambda: stored_states(cluster)[PARTITION].isr == (leader.id,))
        simulation.run(produce, simulation.bootstrap, 20)
        path = f"/broker-{leader.id}/data/orders-0/00000000000000000000.log"
        leader.disk.flip(path, FIRST_VALUE_BIT)
        simulation.mend()
        simulation.pass_time(20)
        told = simulation.run(faults, leader)
        assert f"orders-0 is damaged from offset 0 in {path}" in told["replicas"]
        assert [*rooms(leader).logs.health.damage] == [PARTITION]
        repair(cluster)
        simulation.wait(lambda: is_healthy(cluster))
        simulation.pass_time(1)  # the controller sends the new ISR to the followers
        assert simulation.run(faults, leader) == {}
        assert not rooms(leader).logs.health.damage


def test_a_replica_is_suspect_from_a_power_loss_until_it_is_in_sync() -> None:
    with Simulation(1) as simulation:
        cluster = simulation.cluster
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        leader = simulation.leader("orders", 0)
        controller = controller_of(cluster)
        assert controller is not None and controller.id != leader
        (other,) = cluster.brokers.keys() - {leader, controller.id}
        victim = cluster.brokers[other]
        simulation.lose_power(victim.id)
        simulation.cut(leader, [victim.id])
        simulation.start_broker(victim.id)
        simulation.wait(lambda: victim.serves)
        told = simulation.run(faults, victim)
        assert "it may have lost records in a power loss" in told["replicas"]
        assert rooms(victim).logs.health[PARTITION] is Health.SUSPECT
        simulation.mend()
        simulation.wait(lambda: rooms(victim).logs.health[PARTITION] is Health.WHOLE)
        assert simulation.run(faults, victim) == {}
