"""Who has lost something counts until he has all of it again."""

from __future__ import annotations

import pytest

from pybroker.testing.simulation import Simulation
from pybroker.testing.simulation.harm import HarmAccount
from pybroker.testing.simulation.view import is_whole, stored_states
from unit_tests.simulation.stories import PARTITION, create, produce

_NOBODY_LOOKS = {"pybroker.log.scrub.io.max.bytes.per.second": 0}


@pytest.mark.parametrize("seed", range(3))
def test_a_disk_that_rots_unnoticed_is_harmed_although_its_broker_is_in_sync(seed: int) -> None:
    """Seed 11000937: it was in sync again, another one's disk was harmed then, and what was found
    at last in the first one's cost it all that lay behind, which nobody else had any more."""
    with Simulation(seed, config=_NOBODY_LOOKS) as simulation:
        cluster = simulation.cluster
        account = HarmAccount(cluster, min_isr=2)
        simulation.run(create, simulation.bootstrap)
        simulation.run(produce, simulation.bootstrap, 20)
        simulation.wait(lambda: is_whole(cluster))
        rotten = cluster.brokers[simulation.leader("orders", 0)]
        other = rotten.id % 3 + 1
        account.harm(rotten.id)
        assert account.may_harm(other)  # as it has all that it had
        account.harm(rotten.id)
        simulation.stop(rotten.id)
        path = f"/broker-{rotten.id}/data/orders-0/00000000000000000000.log"
        rotten.disk.flip(path, 8 * (10 * 69 + 66))
        simulation.start_broker(rotten.id)
        simulation.wait(lambda: is_whole(cluster))
        assert rotten.disk.flipped() == [path]
        assert not account.may_harm(other)
        simulation.kill(rotten.id)
        rotten.disk.replace_medium()
        simulation.wait(lambda: rotten.id not in stored_states(cluster)[PARTITION].isr)
        simulation.start_broker(rotten.id)
        simulation.wait(lambda: is_whole(cluster))
        assert account.may_harm(other)
