"""Fault tests with brokers that pause and continue, expiring sessions, and leaders that change: a
broker that no longer leads acknowledges nothing, and no record is lost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from integration_tests.apache import session_at
from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.settings import READERS
from integration_tests.faults.tormented import SESSION_S, Tormented
from pybroker.testing.history import measures
from pybroker.testing.history.checker import check

pytestmark = pytest.mark.ours

PREFERRED_ELECTION = "/admin/preferred_replica_election"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    with Tormented(tmp_path_factory.mktemp("pauses")) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def test_pause_leader(rig: Rig) -> None:
    with rig.run("pause-leader") as run:
        run.wait_for_progress(15)
        leader = run.leader()
        with run.fault("pause", leader):
            rig.cluster.pause(leader)
            run.wait(2 * SESSION_S)
        rig.cluster.resume(leader)
        run.wait_for_progress(15)
        run.wait_for_full_isr()
        history = run.finish()
    begin, _ = measures.fault(history, "pause")
    assert measures.election_delay(history, begin, leader), "no other leader was elected"


def test_session_expire_storm(rig: Rig) -> None:
    dice = random.Random(7)
    with rig.run("session-expire-storm") as run:
        run.wait_for_progress(15)
        for _ in range(8):
            broker = dice.choice(rig.cluster.brokers)
            with run.fault("expire", broker):
                rig.cluster.expire_session(broker)
            run.wait(1.0)
        run.wait_for_full_isr()
        history = run.finish()
    assert measures.elections(history) > 2 * PARTITIONS, "sessions really ended"


def elect_preferred_leaders(rig: Rig, run: Run) -> bool:
    """Request the election like Kafka's old tool. Return False while an earlier election is in
    progress.
    """
    wanted = [{"topic": run.topic, "partition": p} for p in range(PARTITIONS)]
    data = json.dumps({"version": 1, "partitions": wanted}).encode()
    with session_at(rig.cluster.zookeeper) as client:
        if client.exists(PREFERRED_ELECTION):
            return False
        client.create(PREFERRED_ELECTION, data)
    return True


def test_preferred_leader_churn(rig: Rig) -> None:
    with rig.run("preferred-leader-churn") as run:
        asked = 0
        for turn in range(3):
            run.wait_for_progress(10)
            broker = rig.cluster.brokers[turn]
            with run.fault("kill9" if turn else "stop", broker):
                rig.cluster.kill9(broker) if turn else rig.cluster.stop(broker)
            asked += elect_preferred_leaders(rig, run)  # the preferred leader is down
            run.wait_for_progress(10)
            rig.cluster.start(broker)
            asked += elect_preferred_leaders(rig, run)  # it is back, but perhaps not in sync
            run.wait_for_full_isr()
            asked += elect_preferred_leaders(rig, run)
        history = run.finish()
    assert asked >= 3
    assert measures.elections(history) > 2 * PARTITIONS, "leaders really moved"


def test_the_checker_detects_producers_that_do_not_wait_for_followers(rig: Rig) -> None:
    """This tests the checker: if producers use acks=1 and record acks=all, a killed leader loses
    acknowledged records, and the rules report this.
    """
    # without an idempotent producer, which insists on acks=all
    clients = ("one-in-flight", "five-in-flight", *READERS)
    with rig.run("leader-only", clients=clients, leader_only=True) as run:
        run.wait_for_progress(15)
        leader = run.leader()
        for broker in rig.cluster.brokers:
            if broker != leader:
                rig.cluster.pause(broker)
        for _ in range(2):  # the second is of records that were sent during the pause
            run.wait_for_progress(1, clients=["one-in-flight"], partitions=[0])
        with run.fault("kill9", leader):
            rig.cluster.kill9(leader)
        for broker in rig.cluster.brokers:
            if broker != leader:
                rig.cluster.resume(broker)
        run.leader(other_than=leader)
        run.wait_for_progress(5)
        history = run.finish(lossy=True)
    found = {violation.rule for violation in check(history)}
    assert "acked-present" in found
    assert found <= {"acked-present", "one-value-per-offset", "duplicates", "producer-order"} | {
        "monotone-watermarks"
    }
