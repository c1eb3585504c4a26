"""Fault tests with brokers that are killed or restarted while clients write and read: no
acknowledged or delivered record is lost, whichever brokers are killed, and in whatever order they
restart.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.faults.producers import GIVES_UP_MS
from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.settings import PRODUCERS, READERS
from integration_tests.faults.tormented import Tormented
from pybroker.testing.history import measures
from pybroker.testing.history.model import History
from unit_tests.patience import WORK_S

pytestmark = pytest.mark.ours

LAG_S = WORK_S
"""A replica.lag.time.max.ms so long that a run with progress cannot have waited for a follower to
leave the ISR.
"""
PAUSE_S = 0.6
"""A pause in seconds too short for a follower to leave an ISR, and long enough for producers to
send more values.
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    config = {"replica.lag.time.max.ms": int(LAG_S * 1000)}
    with Tormented(tmp_path_factory.mktemp("kills"), config=config) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def kill9(run: Run, broker: int) -> None:
    with run.fault("kill9", broker):
        run.cluster.kill9(broker)


def elections(history: History) -> int:
    """Return the number of times that a partition got another leader."""
    return sum(
        len(measures.election_delay(history, fault.at, int(fault.target)))
        for fault in measures.faults(history, "kill9")
    )


def test_kill9_leader_loop(rig: Rig) -> None:
    """Before every second kill the followers are paused for a moment, so that only the leader has
    the last records, which are not acknowledged.
    """
    with rig.run("kill9-leader-loop") as run:
        for turn in range(4):
            run.wait_for_progress(15)
            leader = run.leader(turn % PARTITIONS)
            followers = [b for b in rig.cluster.brokers if b != leader] if turn % 2 else []
            for broker in followers:
                rig.cluster.pause(broker)
            run.wait(PAUSE_S if followers else 0)
            kill9(run, leader)
            for broker in followers:
                rig.cluster.resume(broker)
            run.wait_for_progress(15)  # while it is away
            rig.cluster.start(leader)
            run.wait_for_full_isr()
        history = run.finish()
    assert elections(history) >= 4


def test_kill9_controller_loop(rig: Rig) -> None:
    with rig.run("kill9-controller-loop") as run:
        offices = []
        for _ in range(3):
            controller = run.controller()
            offices.append(controller)
            kill9(run, controller)
            assert run.controller(other_than=controller) != controller
            run.wait_for_progress(15)
            rig.cluster.start(controller)
            run.wait_for_full_isr()
        history = run.finish()
    assert len({term.epoch for term in history.controller_terms}) > len(offices)


def test_kill9_all_at_once(rig: Rig) -> None:
    with rig.run("kill9-all-at-once") as run:
        for _ in range(2):
            run.wait_for_progress(15)
            with run.fault("kill9-all"):
                rig.cluster.kill9_all()
            rig.cluster.start_all()
            run.wait_for_full_isr()
        run.finish()


def test_rolling_clean_restart(rig: Rig) -> None:
    with rig.run("rolling-clean-restart") as run:
        run.wait_for_progress(15)
        for broker in rig.cluster.brokers:
            with run.fault("stop", broker):
                assert rig.cluster.stop(broker) == 0
            run.wait_for_progress(10)
            rig.cluster.start(broker)
            run.wait_for_full_isr()
        history = run.finish(stop=True)
    patient = [s for s in history.sends.values() if s.identity.producer not in GIVES_UP_MS]
    failed = [send for send in patient if send.outcome != "ok"]
    assert not failed, f"records failed during a clean restart: {failed[:5]}"
    for broker in rig.cluster.brokers:
        recovered = [line for line in rig.new_lines(broker) if "logs opened" in line]
        assert recovered
        assert all("recovered=0" in line for line in recovered), recovered


def test_fast_double_failover(rig: Rig) -> None:
    """The leader changes again before the second leader has written anything, and each log has a
    tail that no other log has.
    """
    with rig.run("fast-double-failover", clients=(*PRODUCERS, "hasty", *READERS)) as run:
        for _ in range(2):
            run.wait_for_progress(15)
            first = run.leader()
            kill9(run, first)
            second = run.leader(other_than=first)
            kill9(run, second)
            rig.cluster.start_all()
            run.wait_for_full_isr()
        history = run.finish(stop=True)
    assert len({state.epoch for state in history.states if state.partition[1] == 0}) >= 4


def test_high_watermark_lag_restart(rig: Rig) -> None:
    """A follower with an old checkpointed high watermark restarts, cannot reach its leader, and is
    elected: it must not have truncated its log to that high watermark (KIP-101).
    """
    with rig.run("high-watermark-lag-restart") as run:
        run.wait_for_progress(15)
        third = rig.cluster.brokers[0]
        kill9(run, third)
        run.wait_for_isr(set(rig.cluster.brokers) - {third})
        run.wait_for_progress(15)
        follower = run.controller(other_than=third)
        (leader,) = set(rig.cluster.brokers) - {third, follower}
        led = [p for p, state in run.watch.all().items() if state.leader == leader]
        assert led
        rig.cluster.pause(leader)
        kill9(run, follower)
        rig.cluster.start(follower)
        for partition in led:
            assert run.leader(partition, other_than=leader) == follower
        kill9(run, leader)
        rig.cluster.start(third)
        run.wait_for_progress(5)
        rig.cluster.start(leader)
        run.wait_for_full_isr()
        run.finish()
