"""Fault tests with a ZooKeeper ensemble that loses members, and its quorum. The brokers continue to
serve the requests that stay safe.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from integration_tests.ensemble import TICK_S, Ensemble
from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.tormented import Tormented
from integration_tests.namespaces import Network
from pybroker.testing.history import measures
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

SESSION_S = 20.0
"""A session timeout in seconds, longer than a machine stalls."""
SYNC_LIMIT_TICKS = 240
LESS_THAN_ALL = "zookeeper lease answers=committed"
"""A pattern of a broker's log line."""


def session(seconds: float) -> dict[str, object]:
    return {"zookeeper.session.timeout.ms": int(seconds * 1000)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    with Tormented(tmp_path_factory.mktemp("zookeeper"), config=session(SESSION_S)) as started:
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
    leaders = {state.leader for state in history.states if state.partition[1] == 0}
    assert len(leaders) == 1, "no session was lost"


def test_zookeeper_quorum_loss(rig: Rig) -> None:
    """No leader is elected and no ISR changes, while producers with acks=all and readers continue.
    After the quorum returns, elections work again.
    """
    ensemble = rig.cluster.ensemble
    with rig.run("zookeeper-quorum-loss") as run:
        run.wait_for_progress(10)
        with run.fault("quorum-loss"):
            lost = ensemble.lose_quorum()
            run.wait(SESSION_S)
            with run.fault("long-gone"):
                run.wait_for_progress(5)
        with run.fault("quorum-back"):
            for member in lost:
                ensemble.restart(member)
            run.wait_for_full_isr()
            run.wait_for_progress(5)
        broker = run.leader()
        with run.fault("kill9", broker):
            rig.cluster.kill9(broker)
        run.leader(other_than=broker)
        rig.cluster.start(broker)
        history = run.finish()
    acked = measures.acked_between(history, *measures.fault(history, "long-gone"))
    assert len(acked) == PARTITIONS, acked


def test_zookeeper_follower_cut_off(network: Network, tmp_path: Path) -> None:
    """A ZooKeeper server that has lost its leader answers reads from its own state until its
    syncLimit has passed. In the quorum, the session of a partition leader connected to this server
    has expired long before. The broker must not take these reads as proof that it is still
    registered.
    """
    assert SYNC_LIMIT_TICKS * TICK_S > 5 * SESSION_S
    places = {number: network.add() for number in (1, 2, 3)}
    ensemble = Ensemble(tmp_path / "ensemble", places=places, sync_limit=SYNC_LIMIT_TICKS)
    config = session(SESSION_S)
    with ensemble, Tormented(tmp_path, config=config, ensemble=ensemble) as cluster:
        follower = ensemble.followers()[0]
        ensemble.unlisted.add(follower)
        rig = Rig(cluster, tmp_path / "ops")
        broker = cluster.brokers[0]
        only_there = {"zookeeper.connect": ensemble.members[follower].address}
        cluster.cluster.restart(broker, config=only_there)
        with rig.run("zookeeper-follower-cut-off") as run:
            run.wait_for_progress(10)
            with run.fault("follower-cut-off", broker):
                others = [place.host for number, place in places.items() if number != follower]
                network.isolate(places[follower].host, others)
                wait_until(
                    lambda: not is_registered(run, broker), what="the session of the broker ends"
                )
                gone_at = time.time()
                assert ensemble.members[follower].mode() == "follower", (
                    "the server has noticed the loss of its leader too early"
                )
                wait_until(
                    lambda: any(LESS_THAN_ALL in line for line in rig.new_lines(broker)),
                    what="the broker reduces its authority",
                )
                run.wait_for_progress(10)
            network.heal()
            run.wait_for_full_isr()
            run.finish()
        lines = [line for line in rig.new_lines(broker) if LESS_THAN_ALL in line]
        assert logged_at(lines[0]) < gone_at, "the broker had full authority without a session"


def is_registered(run: Run, broker: int) -> bool:
    """Return whether the broker is registered. Retry while ZooKeeper does not answer."""
    nodes = list(run.watch.nodes("/brokers/ids"))
    is_told = nodes[0].startswith("/brokers/ids version=")
    return not is_told or any(node.startswith(f"/brokers/ids/{broker} ") for node in nodes)


def logged_at(line: str) -> float:
    """Return the time at which a broker logged that line."""
    stamp = line[1:].partition("]")[0]
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
