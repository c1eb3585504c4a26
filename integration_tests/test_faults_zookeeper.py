"""A ZooKeeper ensemble that loses members, and its quorum, under brokers that go on as far as they
can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.faults.rig import Rig
from integration_tests.faults.tormented import SESSION_S, Tormented
from pybroker.testing.history import measures
from pybroker.testing.history.model import NANOSECONDS

pytestmark = pytest.mark.ours

PAUSE_SECONDS_MAX = 2.0
"""Nothing needs ZooKeeper while nobody leaves or joins: acknowledgements go on."""
RECOVERY_SECONDS_MAX = 10.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    with Tormented(tmp_path_factory.mktemp("zookeeper")) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def test_zookeeper_member_loss(rig: Rig) -> None:
    ensemble = rig.cluster.ensemble
    with rig.run("zookeeper-member-loss") as run:
        run.wait_for_progress(10)
        with run.fault("member-loss"):
            for role in ("follower", "leader"):
                lost = ensemble.leader() if role == "leader" else ensemble.followers()[0]
                ensemble.kill(lost)
                ensemble.leader()
                run.wait(SESSION_S + 1)
                run.wait_for_progress(10)
                ensemble.restart(lost)
        history = run.finish()
    begin, end = measures.fault(history, "member-loss")
    pauses = measures.longest_pauses(history, begin, end)
    assert all(pause < PAUSE_SECONDS_MAX for pause in pauses.values()), pauses
    leaders = {state.leader for state in history.states if state.partition[1] == 0}
    assert len(leaders) == 1, "no session was lost"


def test_zookeeper_quorum_loss(rig: Rig) -> None:
    """Nobody can be elected and no ISR changes; acks=all and readers go on. When the quorum is back
    so is everything else."""
    ensemble = rig.cluster.ensemble
    with rig.run("zookeeper-quorum-loss") as run:
        run.wait_for_progress(10)
        with run.fault("quorum-loss"):
            lost = ensemble.lose_quorum()
            run.wait(3 * SESSION_S)
            run.wait_for_progress(5)
        with run.fault("quorum-back"):
            for member in lost:
                ensemble.restart(member)
            run.wait_for_full_isr(seconds=RECOVERY_SECONDS_MAX)
            run.wait_for_progress(5, seconds=RECOVERY_SECONDS_MAX)
        broker = run.leader()
        with run.fault("kill9", broker):
            rig.cluster.kill9(broker)
        run.leader(other_than=broker)
        rig.cluster.start(broker)
        history = run.finish()
    begin, end = measures.fault(history, "quorum-loss")
    acked = measures.acked_between(history, begin + int(2 * SESSION_S * NANOSECONDS), end)
    assert all(acked.values()), acked
