"""Fault tests of groups whose coordinators die, pause, or lose ZooKeeper or their session, with
both offset stores: members join and leave, no record is skipped, committed offsets are kept, and an
old coordinator changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from integration_tests.faults.rig import Rig
from integration_tests.faults.taps import LostWrites
from integration_tests.faults.tormented import SESSION_S, Tormented
from integration_tests.faults.trial import (
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
    OUTLASTING_MS,
    trial_of,
)

pytestmark = pytest.mark.ours

LOST_ONE_IN: Final = 5


@pytest.fixture(scope="module", params=["zookeeper", "kafka"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tormented]:
    config = {
        "offsets.storage": request.param,
        "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
        "group.min.session.timeout.ms": 1_000,
    }
    folder = tmp_path_factory.mktemp("groups")
    with Tormented(folder, proxied=True, config=config) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def test_coordinator_killed_under_a_stable_group(rig: Rig) -> None:
    """The new coordinator loads the group: the generation is unchanged, and all members keep their
    partitions.
    """
    with trial_of(rig, "group-coordinator-killed") as trial:
        trial.join("a", "b", "c", session_ms=OUTLASTING_MS)
        generation = trial.wait_until_shared()
        trial.wait_for_commits()
        rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        before = trial.held
        for _ in range(2):
            coordinator = trial.coordinator()
            with trial.run.fault("kill9", coordinator):
                rig.cluster.kill9(coordinator)
            trial.coordinator(other_than=coordinator)
            trial.wait_for_commits()
            assert trial.held == before
            rig.cluster.start(coordinator)
            rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        trial.join("d", session_ms=OUTLASTING_MS)
        assert trial.wait_until_shared() > generation
        trial.finish()


def test_coordinator_killed_while_members_join_and_leave(rig: Rig) -> None:
    """The test has no kafka-python members: version 3.0.12 sends JoinGroup to the dead coordinator
    for a minute.
    """
    with trial_of(rig, "group-rebalance-killed") as trial:
        trial.join("a", "b")
        trial.wait_until_shared()
        trial.wait_for_commits()
        coordinator = trial.coordinator()
        trial.join("c", "e")
        with trial.run.fault("kill9", coordinator):
            rig.cluster.kill9(coordinator)
        trial.wait_until_shared()
        trial.wait_for_commits()
        rig.cluster.start(coordinator)
        trial.leave("a")
        trial.wait_until_shared()
        trial.finish()


def test_coordinator_paused_and_resumed(rig: Rig) -> None:
    """When the old coordinator continues, commits wait in its sockets. It must apply none of
    them.
    """
    with trial_of(rig, "group-coordinator-paused") as trial:
        trial.join("a", "b")
        trial.wait_until_shared()
        trial.wait_for_commits()
        coordinator = trial.coordinator()
        with trial.run.fault("pause", coordinator):
            rig.cluster.pause(coordinator)
            trial.join("c")
            trial.coordinator(other_than=coordinator)
            trial.wait_until_shared()
            trial.wait_for_commits()
        rig.cluster.resume(coordinator)
        trial.wait_for_commits()
        trial.leave("b")
        trial.wait_until_shared()
        trial.finish()


def test_coordinator_cut_from_zookeeper(rig: Rig) -> None:
    """The members still reach the old coordinator. After its session has expired, they continue
    with another coordinator in the same generation, and new members join there, although they have
    only the first broker's address.
    """
    with trial_of(rig, "group-coordinator-cut") as trial:
        trial.join("a", "c", session_ms=OUTLASTING_MS)
        trial.wait_until_shared()
        trial.wait_for_commits()
        rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        before = trial.held
        coordinator = trial.coordinator()
        with trial.run.fault("cut", coordinator):
            rig.cluster.cut(coordinator, "zookeeper")
            trial.coordinator(other_than=coordinator)
            trial.wait_for_commits()
            trial.run.wait(SESSION_S)
            assert trial.held == before
            trial.join("b", "e", session_ms=OUTLASTING_MS, by=coordinator)
            trial.wait_until_shared()
            trial.wait_for_commits()
        rig.cluster.heal()
        trial.wait_for_commits()
        trial.wait_until_shared()
        trial.finish()


def test_sessions_of_coordinators_expire(rig: Rig) -> None:
    with trial_of(rig, "group-sessions-expire") as trial:
        trial.join("a", "b")
        trial.wait_until_shared()
        for name in ("c", "d"):
            trial.wait_for_commits()
            coordinator = trial.coordinator()
            trial.join(name)
            with trial.run.fault("expire", coordinator):
                rig.cluster.expire_session(coordinator)
            trial.wait_until_shared()
        trial.leave("a")
        trial.wait_until_shared()
        trial.wait_for_commits()
        trial.finish()


def test_sessions_for_offsets_end_in_mid_commit(rig: Rig) -> None:
    """The session of each coordinator expires while a write of offsets or members is in flight,
    alternately before it arrives and after it is applied.
    """
    with trial_of(rig, "group-offset-sessions") as trial:
        trial.join("a", "b", session_ms=OUTLASTING_MS)
        trial.wait_until_shared()
        trial.wait_for_commits()
        taps, ended = [], []
        for broker in rig.cluster.brokers:

            def end(broker: int = broker) -> None:
                ended.append((broker, rig.cluster.expire_session(broker, of_offsets=True)))

            lost = LostWrites(b"/consumers/", one_in=LOST_ONE_IN, seed=broker, besides=end)
            rig.cluster.cluster.tap(broker, "zookeeper", lost.make)
            taps.append(lost)
        for name in ("c", "d"):
            trial.join(name, session_ms=OUTLASTING_MS)
            trial.wait_until_shared()
            trial.wait_for_commits()
        trial.leave("c")
        trial.wait_until_shared()
        rig.cluster.heal()
        trial.wait_for_commits()
        for broker, session in ended:
            heard = f"zookeeper session expired session=0x{session:x}"
            assert any(heard in line for line in rig.new_lines(broker)), heard
        lost_ones = {what.rpartition(" ")[2] for lost in taps for what in lost.lost}
        assert lost_ones == {"request", "answer"}
        trial.finish()


def test_brokers_are_restarted_in_turn(rig: Rig) -> None:
    """Brokers are restarted with the other offset store, and once more with their first store, so
    that both stores are in use at the same time. Coordinators move, and no member has to rejoin.
    """
    with trial_of(rig, "group-rolling-restart") as trial:
        trial.join("a", "b", "c", session_ms=OUTLASTING_MS)
        trial.wait_until_shared()
        trial.wait_for_commits()
        before = trial.held
        own = rig.cluster.config["offsets.storage"]
        rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        for storage in ("kafka", own) if own == "zookeeper" else (own,):
            coordinators = {trial.coordinator()}
            for broker in rig.cluster.brokers:
                with trial.run.fault("restart", broker):
                    assert rig.cluster.stop(broker) == 0
                    coordinators.add(trial.coordinator())  # it may be back soon
                    rig.cluster.start(broker, config={"offsets.storage": storage})
                rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
                trial.run.wait_for_full_isr()
                trial.wait_for_commits()
            assert len(coordinators) > 1
        assert trial.held == before
        trial.finish()
