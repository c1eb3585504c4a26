"""Fault tests with breaking links: at random, right after a request was applied, or around a write
to ZooKeeper. A sender without an answer does not know the outcome and retries, and no request has
its effect twice.

`PYBROKER_FAULTS_SECONDS=60` sets the duration of the random part.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from typing import Final

import pytest

from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.settings import READERS
from integration_tests.faults.taps import LostAnswers, LostWrites
from integration_tests.faults.tormented import Tormented
from pybroker.testing.history.model import History, State
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

SECONDS: Final = float(os.environ.get("PYBROKER_FAULTS_SECONDS", "20"))
JITTER_S: Final = 0.3
BREAK_SECONDS_MAX: Final = 1.0
EXACT: Final = ("idempotent", "ours")
"""The producers whose values must occur once and in order."""
LOST_ANSWERS_MIN: Final = 20
LOST_WRITES_MIN: Final = 2
SESSION_S: Final = 9.0
"""A session timeout in ms so long that a paused broker leaves the ISR before its session
expires.
"""
CONTROLLER: Final = b"/controller"
STATE: Final = b"/state"
"""Parts of the paths of the controller's node, and of the nodes with leaders and ISRs."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    config = {"zookeeper.session.timeout.ms": int(SESSION_S * 1000)}
    folder = tmp_path_factory.mktemp("flaky")
    with Tormented(folder, proxied=True, config=config) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def test_flaky_links(rig: Rig) -> None:
    """Every piece of data is delayed by a random time, and connections break now and then."""
    dice = random.Random(5)
    with rig.run("flaky-links", clients=(*EXACT, "five-in-flight", *READERS)) as run:
        run.wait_for_progress(10)
        before = run.progress().acked
        with run.fault("flaky"):
            rig.cluster.cluster.delay(0, jitter=JITTER_S)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                run.wait(dice.uniform(0, BREAK_SECONDS_MAX))
                rig.cluster.cluster.reset(dice.choice(rig.cluster.brokers))
            during = run.progress().acked
        run.finish()
    for name in EXACT:
        assert all(during[name][p] > before[name].get(p, 0) for p in during[name]), during


def test_responses_lost(rig: Rig) -> None:
    """Clients' connections break instead of delivering Produce responses: the records are stored,
    but the producers do not know this. The leader is killed, so that the next leader must detect
    the retries.
    """
    lost = LostAnswers(one_in=4, seed=6)
    with rig.run("responses-lost", clients=(*EXACT, *READERS)) as run:
        run.wait_for_progress(10)
        with run.fault("lose-answers"):
            for broker in rig.cluster.brokers:
                rig.cluster.cluster.tap(broker, "clients", lost.make)
            for _ in range(2):
                wait_for_more(lost, LOST_ANSWERS_MIN)
                leader = run.leader()
                with run.fault("kill9", leader):
                    rig.cluster.kill9(leader)
                rig.cluster.start(leader)
                run.wait_for_full_isr()
            run.wait_for_progress(10)
        run.finish()
    print(f"responses-lost: {lost.lost} answers lost")


def wait_for_more(lost: LostAnswers, count: int) -> None:
    enough = lost.lost + count
    wait_until(lambda: lost.lost >= enough, what=f"{count} more lost answers")


def test_zookeeper_connection_lost_during_a_write(rig: Rig) -> None:
    """Every second write of ISRs, leaders or the controller's node breaks its connection,
    alternately before it arrives and after it is applied.
    """
    lost = LostWrites(STATE, CONTROLLER, one_in=2, seed=8)
    with rig.run("mid-request") as run:
        run.wait_for_progress(10)
        for broker in rig.cluster.brokers:
            rig.cluster.cluster.tap(broker, "zookeeper", lost.make)
        for _ in range(3):
            stand_still_and_go_on(rig, run)
            end_session_of_controller(rig, run)
            run.wait_for_progress(5)
        leader = run.leader()
        with run.fault("kill9", leader):
            rig.cluster.kill9(leader)
        rig.cluster.start(leader)
        run.leader(other_than=leader)
        run.wait_for_full_isr()
        history = run.finish()
    print(f"mid-request: {dict(lost.lost)}")
    assert not repeated_states(history)
    for end in ("request", "answer"):
        of_states = sum(n for what, n in lost.lost.items() if "state" in what and end in what)
        assert of_states >= LOST_WRITES_MIN, lost.lost
        assert any("controller" in what and end in what for what in lost.lost), lost.lost


def end_session_of_controller(rig: Rig, run: Run) -> None:
    """Expire the controller's session: another broker becomes controller, and other brokers lead
    its partitions.
    """
    controller = run.controller()
    led = [p for p, state in run.watch.all().items() if state.leader == controller]
    with run.fault("expire", controller):
        rig.cluster.expire_session(controller)
    for partition in led:
        run.leader(partition, other_than=controller)
    run.wait_for_full_isr()


def stand_still_and_go_on(rig: Rig, run: Run) -> None:
    """Pause a follower until it has left each ISR because of its lag, then let it rejoin."""
    controller = run.controller()
    follower = next(broker for broker in rig.cluster.brokers if broker != controller)
    led_by_others = [p for p, state in run.watch.all().items() if state.leader != follower]
    with run.fault("pause", follower):
        rig.cluster.pause(follower)
        for partition in led_by_others:
            run.wait_for_state(
                partition, lambda s: follower not in s.isr, "the paused broker has left the ISR"
            )
    rig.cluster.resume(follower)
    run.wait_for_full_isr()


def repeated_states(history: History) -> list[tuple[State, State]]:
    """Return versions of partition states with the same content as the version before, which shows
    that a change was written twice.
    """
    found = []
    for partition in range(PARTITIONS):
        states = {s.version: s for s in history.states if s.partition[1] == partition}
        for before, after in itertools.pairwise(sorted(states)):
            one, other = states[before], states[after]
            if after == before + 1 and said(one) == said(other):
                found.append((one, other))
    return found


def said(state: State) -> tuple[object, ...]:
    ends = tuple(sorted(state.isr)), tuple(sorted(state.eligible))
    return (state.leader, state.epoch, state.controller_epoch, *ends)
