"""Tests of bugs with damaged leader epochs in batches, which no checksum covers, found by the
simulation."""

from __future__ import annotations

import pytest

from pybroker.client import Admin, NewTopic
from pybroker.testing.simulation import Simulation
from pybroker.testing.simulation.view import is_healthy
from unit_tests.simulation.scenarios import create, produce, read_all


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("number", "more"), ((9, 10), (10, 10), (10, 1)))
def test_a_damaged_leader_epoch_of_the_first_broker_to_return_loses_nothing(
    seed: int, number: int, more: int
) -> None:
    """No checksum covers the leader epoch of a batch. A killed broker trusted a damaged epoch
    although its leader-epoch-checkpoint contradicts the epoch. The broker restarted first and led,
    and the other brokers, which requested the ends of their epochs from it, truncated committed
    records.
    """
    with Simulation(seed, config={"log.flush.interval.messages": 1}) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        simulation.kill(simulation.leader("orders", 0))
        simulation.run(produce, simulation.bootstrap, more)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        first = simulation.leader("orders", 0)
        for broker in (1, 2, 3):
            simulation.kill(broker)
        simulation.pass_time(10)
        path = f"/broker-{first}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[first].disk.flip(path, 8 * (number * 69 + 15) + 4)
        simulation.start_broker(first)
        simulation.pass_time(2.5)
        simulation.mend()
        simulation.wait(lambda: is_healthy(simulation.cluster))
        values = simulation.run(read_all, simulation.bootstrap, 10 + more)
    assert values == [b"%d" % (number % 10) for number in range(10 + more)]


async def create_alone(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        for result in await admin.create_topics([NewTopic("orders", 1, 1)]):
            result.check()


@pytest.mark.parametrize(("number", "bit"), ((10, 1), (10, 4), (4, 0), (4, 4)))
def test_a_damaged_leader_epoch_does_not_matter_to_the_only_replica(number: int, bit: int) -> None:
    """Without other replicas no log is truncated because of the damaged epoch, and all records are
    intact, even if the batch is certainly damaged and later batches exist.
    """
    with Simulation(1) as simulation:
        simulation.run(create_alone, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 10)
        only = simulation.leader("orders", 0)
        simulation.kill(only)
        simulation.start_broker(only)
        simulation.run(produce, simulation.bootstrap, 1)
        simulation.kill(only)
        path = f"/broker-{only}/data/orders-0/00000000000000000000.log"
        simulation.cluster.brokers[only].disk.flip(path, 8 * (number * 69 + 15) + bit)
        for count in (21, 31, 41):
            simulation.start_broker(only)
            simulation.run(produce, simulation.bootstrap, 10)
            simulation.pass_time(5)
            assert len(simulation.run(read_all, simulation.bootstrap, count)) == count
            app = simulation.cluster.brokers[only].app
            assert app is not None
            assert not app.unhealthy_replicas.waiting
            simulation.kill(only)
