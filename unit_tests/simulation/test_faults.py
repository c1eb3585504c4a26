"""What faults leave alone, as it could not be."""

from __future__ import annotations

import math
import random

import pytest

from pybroker.testing.simulation import ZOOKEEPER, Simulation
from pybroker.testing.simulation.faults import FAULTS, Scene
from pybroker.testing.simulation.schedule import FaultEvent


@pytest.mark.parametrize("is_cut", (False, True))
def test_a_session_ends_early_only_for_who_can_hear_of_it(is_cut: bool) -> None:
    """A broker that is cut off relies on the time that its session has left."""
    with Simulation(1) as simulation:
        cluster = simulation.cluster
        client = cluster.zookeeper.client("broker-1")
        assert client is not None
        session = client.session_id
        simulation.wait(lambda: client.silence() < 0.01)
        if is_cut:
            simulation.cut(1, [ZOOKEEPER])
        event = FaultEvent(0.0, "expire", "1", 0.0)
        FAULTS["expire"](Scene(cluster, event, [cluster.brokers[1]], random.Random(1)))
        assert (session in cluster.zookeeper.session_ids()) is is_cut
        if not is_cut:
            (early,) = cluster.zookeeper.early_ends
            assert (early.machine, early.at, early.heard_at) == (
                "broker-1",
                simulation.now,
                math.inf,
            )
            simulation.wait(lambda: early.heard_at == simulation.now)
            assert client.session_id != session
