"""What the simulation has found in the broker, as small stories of their own: seeds change their
meaning when anything about a run does. docs/reliability.rst has the list."""

from __future__ import annotations

import pytest

from pybroker.testing.simulation import Simulation
from pybroker.testing.simulation.links import Delay
from unit_tests.simulation.stories import create, produce, read_all


@pytest.mark.parametrize("seed", (0, 7, 8))
def test_a_leader_whose_whole_log_is_gone_after_a_power_loss_is_not_elected(seed: int) -> None:
    """Nothing of a young partition is synced, so its directory may be gone without a trace; then
    nothing told that the log had been there, and its empty successor led."""
    with Simulation(seed) as simulation:
        simulation.run(create, simulation.bootstrap)
        assert simulation.run(produce, simulation.bootstrap, 20) == list(range(20))
        leader = simulation.leader("orders", 0)
        simulation.lose_power(leader)
        others = sorted(simulation.cluster.brokers.keys() - {leader})
        for broker in others:
            simulation.kill(broker)
        simulation.start_broker(leader)
        simulation.pass_time(6)
        for broker in others:
            simulation.start_broker(broker)
        simulation.mend()
        values = simulation.run(read_all, simulation.bootstrap, 20)
    assert values == [b"%d" % number for number in range(20)]


def test_a_consumer_far_away_finds_where_to_begin() -> None:
    """It gave the answer one millisecond, which is enough on one machine only."""
    with Simulation(1) as simulation:
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.cluster.links.usual = Delay(least_s=0.04)
        assert len(simulation.run(read_all, simulation.bootstrap, 20)) == 20
