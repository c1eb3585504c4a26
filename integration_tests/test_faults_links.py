"""Links that fall silent: between brokers, between a broker and ZooKeeper, or both. Who is cut off
refuses what it cannot keep, and takes over what the others decided when the link is back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.settings import PRODUCERS, READERS
from integration_tests.faults.tormented import LAG_S, SESSION_S, Tormented
from pybroker.testing.history import measures
from pybroker.testing.history.model import NANOSECONDS, History

pytestmark = pytest.mark.ours

REFUSALS = {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}
NOTICED_S = LAG_S + 2.0
"""By then a leader has taken those who lag out of the ISR."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    with Tormented(tmp_path_factory.mktemp("links"), proxied=True) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def led_by(run: Run, broker: int) -> list[int]:
    return [p for p, state in run.watch.all().items() if state.leader == broker]


def a_leader_without_office(run: Run) -> int:
    """A broker that leads something and is not the controller, whose office would go elsewhere."""
    controller = run.controller()
    return next(
        state.leader for state in run.watch.all().values() if state.leader not in (-1, controller)
    )


def answers_of_led(history: History, partitions: list[int], begin: int, end: int) -> Counter[str]:
    """What the prober was told of values that it sent to these partitions in that time."""
    return Counter(
        "ok" if send.outcome == "ok" else send.error
        for send in history.sends.values()
        if send.identity.producer == "prober"
        and send.partition[1] in partitions
        and begin <= send.begun <= end
    )


def test_leader_cut_from_peers(rig: Rig) -> None:
    """It still has its session, so it stays the leader, and has to refuse: it is alone in sync."""
    with rig.run("leader-cut-from-peers", clients=(*PRODUCERS, "prober", *READERS)) as run:
        run.wait_for_progress(10)
        leader = a_leader_without_office(run)
        with run.fault("cut", leader):
            rig.cluster.cut(leader, *(b for b in rig.cluster.brokers if b != leader))
            for partition in led_by(run, leader):
                run.wait_for_state(partition, lambda s: s.isr == (leader,), "the leader is alone")
            alone = led_by(run, leader)
            run.wait(3.0)
        rig.cluster.heal()
        run.wait_for_full_isr()
        history = run.finish()
    begin, end = measures.fault(history, "cut")
    begin += int(NOTICED_S * NANOSECONDS)
    told = answers_of_led(history, alone, begin, end)
    assert told, "the prober asked"
    assert set(told) <= REFUSALS, told
    acked = measures.acked_between(history, begin, end)
    for partition in range(PARTITIONS):
        went_on = acked[run.topic, partition] > 0
        assert went_on == (partition not in alone), (partition, alone, acked)


def test_leader_cut_from_zookeeper(rig: Rig) -> None:
    """Its session ends without its knowing; clients and followers still reach it."""
    with rig.run("leader-cut-from-zookeeper") as run:
        run.wait_for_progress(10)
        leader = run.leader()
        with run.fault("cut", leader):
            rig.cluster.cut(leader, "zookeeper")
            run.leader(other_than=leader)
            run.wait_for_progress(10)
            run.wait(SESSION_S)
        rig.cluster.heal()
        run.wait_for_full_isr()
        history = run.finish()
    begin, _ = measures.fault(history, "cut")
    delays = measures.election_delay(history, begin, leader)
    assert delays
    assert all(delay < SESSION_S + 2 for delay in delays.values()), delays


def test_isolate_and_heal(rig: Rig) -> None:
    """The leader is alone with its clients; what it took then was acknowledged to nobody, and is
    cut off by leader epochs when it is back."""
    clients = (*PRODUCERS, "hasty", "prober", *READERS)
    with rig.run("isolate-and-heal", clients=clients) as run:
        run.wait_for_progress(10)
        leader = run.leader()
        with run.fault("cut", leader):
            rig.cluster.cut(leader)
            run.leader(other_than=leader)
            run.wait_for_progress(10, clients=PRODUCERS)
        rig.cluster.heal()
        run.wait_for_full_isr()
        history = run.finish(stop=True)
    begin, _ = measures.fault(history, "cut")
    delays = measures.election_delay(history, begin, leader)
    assert delays
    assert all(delay < SESSION_S + 2 for delay in delays.values()), delays
