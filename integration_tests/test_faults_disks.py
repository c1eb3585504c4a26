"""Fault tests with wiped disks and machines that lose power: a replica that lost records is not in
sync, even if the partition's state still lists it in the ISR.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.faults import machines
from integration_tests.faults.machines import Machine, forget_unsynced
from integration_tests.faults.replicas import log_end
from integration_tests.faults.rig import PARTITIONS, Rig
from integration_tests.faults.tormented import SESSION_S, Tormented
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

LONG_SESSION_S = 40.0
"""The session timeout in ms, for which a leader with a delayed link to ZooKeeper stays leader."""


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Tormented, dict[int, Machine]]]:
    reason = machines.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("power")
    each = {broker: Machine(folder, broker) for broker in Tormented.brokers}
    places = {broker: machine.place for broker, machine in each.items()}
    with Tormented(folder, places=places) as started:
        yield started, each


def test_power_loss_of_the_last_in_sync_replica(
    made: tuple[Tormented, dict[int, Machine]], tmp_path: Path
) -> None:
    """The replica restarts first, with a shorter log, and must wait for a replica with every
    record.
    """
    cluster, each = made
    rig = Rig(cluster.fit(), tmp_path)
    with rig.run("power-loss-of-the-last") as run:
        run.wait_for_progress(10)
        first, second, last = cluster.brokers
        for broker, rest in ((first, {second, last}), (second, {last})):
            with run.fault("kill9", broker):
                cluster.kill9(broker)
            run.wait_for_isr(rest)
            if broker == first:
                run.wait_for_progress(10)
        with run.fault("power-loss", last):
            cluster.kill9(last)
            assert forget_unsynced(cluster.log_dir(last), run.topic) > 0
            each[last].boot()
        cluster.start(last)
        run.wait(2 * SESSION_S)
        states = run.watch.all()
        assert {state.leader for state in states.values()} == {-1}, states
        cluster.start(second)
        for partition in range(PARTITIONS):
            state = run.wait_for_state(partition, lambda s: s.leader >= 0, "a leader")
            assert state.leader == second, state
        cluster.start(first)
        run.finish()


def test_power_loss_of_one_machine(
    made: tuple[Tormented, dict[int, Machine]], tmp_path: Path
) -> None:
    """A leader loses power and restarts before its session expires: other replicas lead, the old
    leader fetches the lost records, and every acknowledged record exists.
    """
    cluster, each = made
    rig = Rig(cluster.fit(), tmp_path)
    with rig.run("power-loss-of-one-machine") as run:
        for _ in range(2):
            run.wait_for_progress(10)
            leader = run.leader()
            with run.fault("power-loss", leader):
                cluster.kill9(leader)
                assert forget_unsynced(cluster.log_dir(leader), run.topic) > 0
                each[leader].boot()
            cluster.start(leader)
            run.leader(other_than=leader)
            run.wait_for_full_isr()
        run.finish()


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    config = {"zookeeper.session.timeout.ms": int(LONG_SESSION_S * 1000)}
    folder = tmp_path_factory.mktemp("slow")
    with Tormented(folder, proxied=True, config=config) as started:
        yield started


def test_late_isr_expand_of_a_wiped_follower(slow: Tormented, tmp_path: Path) -> None:
    """The leader's write that adds a follower to the ISR is in flight while the follower loses its
    disk and restarts empty. The write must fail (KIP-903).
    """
    rig = Rig(slow.fit(), tmp_path)
    with rig.run("late-isr-expand") as run:
        run.wait_for_progress(10)
        controller = run.controller()
        leader = next(
            state.leader for state in run.watch.all().values() if state.leader != controller
        )
        (follower,) = set(slow.brokers) - {controller, leader}
        partition = next(p for p, s in run.watch.all().items() if s.leader == leader)
        slow.kill9(follower)
        run.wait_for_state(
            partition, lambda s: follower not in s.isr, "the follower has left the ISR"
        )
        with run.fault("hold", leader):
            slow.cut(leader, "zookeeper", direction="out")
            slow.start(follower)
            wait_until(
                lambda: caught_up(slow, run.topic, partition, leader, follower),
                what="the follower has all records",
            )
            run.wait(0.5)  # the leader has proposed it by now
            with run.fault("wipe", follower):
                slow.kill9(follower)
                slow.expire_session(follower)  # an empty disk has no stored session any more
                slow.wipe(follower)
                slow.start(follower)
                slow.pause(follower)
        held = run.watch.all()[partition]
        assert follower not in held.isr, held
        slow.cluster.heal()
        run.wait(1.0)
        state = run.watch.all()[partition]
        end = log_end(slow.log_dir(follower), (run.topic, partition))
        assert (
            follower not in state.isr
            or end >= log_end(slow.log_dir(leader), (run.topic, partition)) - 50
        )
        slow.resume(follower)
        run.finish(allowed_errors=["log directory lost"])


def caught_up(cluster: Tormented, topic: str, partition: int, leader: int, follower: int) -> bool:
    """Return whether the follower now has the log end that the leader had a moment ago."""
    end = log_end(cluster.log_dir(leader), (topic, partition))
    return log_end(cluster.log_dir(follower), (topic, partition)) >= end > 0
