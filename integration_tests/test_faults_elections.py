"""Fault tests of partitions whose last in-sync replica is down: they wait for this replica, or,
with unclean election, lose records and report the lost offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration_tests.apache import session_at
from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.settings import READERS
from integration_tests.faults.tormented import SESSION_S, Tormented
from pybroker.client import Admin, Consumer, NewTopic, Producer
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.loss_receipts import (
    UNCLEAN_ELECTION,
    TruncatedRange,
    decode_receipts,
)
from pybroker.model import TopicPartition
from pybroker.testing.cluster import Cluster
from pybroker.testing.history.checker import check
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

REFUSALS = ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
PLAIN = ("one-in-flight", "five-in-flight")
"""The clients of the workload. Idempotent producers are left out: in every library they fail
permanently once their records are lost.
"""
NO_CHECKPOINTS = {"replica.high.watermark.checkpoint.interval.ms": 3_600_000}
"""A checkpoint interval in ms so long that a killed broker always finds an old high watermark."""
TOPIC = "named"
KEY = TopicPartition(TOPIC, 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    with Tormented(tmp_path_factory.mktemp("elections"), config=NO_CHECKPOINTS) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def leave_one_after_another(run: Run, *, probed: bool = False) -> list[int]:
    """Kill two brokers, each after the broker killed before has left every ISR, then the last
    broker. Return them in this order. Records are acknowledged between the first and the second
    kill. `probed`: wait until the last broker has refused records.
    """
    order = list(run.cluster.brokers)
    for number, broker in enumerate(order[:2]):
        with run.fault("kill9", broker):
            run.cluster.kill9(broker)
        rest = set(order[number + 1 :])
        run.wait_for_isr(rest)
        if number == 0:
            run.wait_for_progress(10)
    run.wait_for_refusals("prober", REFUSALS) if probed else run.wait(1.0)
    with run.fault("kill9", order[2]):
        run.cluster.kill9(order[2])
    return order


def test_unclean_election_off(rig: Rig) -> None:
    """The broker that left first restarts alone and does not become a leader, however long it
    waits. The second broker may lead: nothing was committed after it had left, so no client has
    seen the records that only the last broker has.
    """
    clients = (*PLAIN, "idempotent", "ours", "hasty", "prober", *READERS)
    with rig.run("unclean-election-off", clients=clients) as run:
        run.wait_for_progress(10)
        first, second, last = leave_one_after_another(run, probed=True)
        rig.cluster.start(first)
        run.wait(2 * SESSION_S)
        states = run.watch.all()
        assert {state.leader for state in states.values()} == {-1}, states
        assert all(first not in state.isr + state.eligible for state in states.values()), states
        rig.cluster.start(second)
        assert run.leader() == second
        run.wait_for_progress(5, clients=("idempotent", "ours"))
        rig.cluster.start(last)
        history = run.finish()
    told = {s.error for s in history.sends.values() if s.identity.producer == "prober"}
    assert told & {*REFUSALS}, told


def test_unclean_election_on(rig: Rig) -> None:
    """The broker that left first is elected, without the records that the other brokers
    acknowledged. A loss receipt names the lost offsets, and the checker finds exactly these records
    missing.
    """
    configs = {"unclean.leader.election.enable": "true"}
    with rig.run("unclean-election-on", clients=(*PLAIN, *READERS), configs=configs) as run:
        run.wait_for_progress(10)
        first, second, last = leave_one_after_another(run)
        rig.cluster.start(first)
        assert run.leader() == first
        rig.cluster.start(second)
        rig.cluster.start(last)
        history = run.finish(lossy=True, allowed_errors=["loss receipt partition="])
        told = [run.watch.loss(partition) for partition in range(PARTITIONS)]
    for receipts in told:
        assert receipts is not None
        (receipt,) = receipts["receipts"]
        assert receipt["reason"] == "unclean-election"
        assert receipt["leader"] == first
        gave_up = receipt["given_up"]
        assert {each["replica"] for each in gave_up} <= {second, last}
        assert all(int(each["from"]) < int(each["to"]) for each in gave_up)
    lost = {violation.rule for violation in check(replace(history, losses=[]))}
    assert "acked-present" in lost


async def pay(bootstrap: str, count: int) -> list[int]:
    """Send `count` values, each after all in-sync replicas have acknowledged the value before.
    Return their offsets.
    """
    async with Producer(bootstrap) as producer:
        return [(await (await producer.send(TOPIC, b"v"))).offset for _ in range(count)]


async def read(bootstrap: str, count: int) -> list[int]:
    async with Consumer(bootstrap) as consumer:
        consumer.assign([KEY])
        consumer.seek_to_beginning(KEY)
        return [(await consumer.getone()).offset for _ in range(count)]


async def create(bootstrap: str) -> None:
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    async with Admin(bootstrap) as admin:
        for result in await admin.create_topics([NewTopic(TOPIC, 1, 2, configs=configs)]):
            result.check()


def in_sync(cluster: Cluster) -> tuple[int, ...]:
    state = cluster.partition(TOPIC, 0)
    return () if state is None else tuple(state.isr)


def test_a_receipt_names_what_was_acknowledged_after_the_last_checkpoint(tmp_path: Path) -> None:
    """A leader that is the only in-sync replica acknowledges records 10 to 19 and is killed. The
    other replica is elected without them, and the old leader, which has an older high watermark,
    truncates them."""
    with Cluster(2, config=NO_CHECKPOINTS, data=tmp_path / "data") as cluster:
        asyncio.run(create(cluster.bootstrap))
        cluster.wait_until_in_sync(TOPIC)
        assert asyncio.run(pay(cluster.bootstrap, 10)) == [*range(10)]
        leader = cluster.leader(TOPIC, 0)
        (other,) = set(cluster.ids) - {leader}
        cluster.kill(other)
        wait_until(lambda: in_sync(cluster) == (leader,), what="the leader is alone in sync")
        assert asyncio.run(pay(cluster.bootstrap, 10)) == [*range(10, 20)]
        assert asyncio.run(read(cluster.bootstrap, 20)) == [*range(20)]
        cluster.kill(leader)
        cluster.restart(other)
        assert cluster.leader(TOPIC, 0) == other
        cluster.restart(leader)
        cluster.wait_until_in_sync(TOPIC)
        with session_at(cluster.zookeeper) as session:
            path = paths.loss(KEY)
            (receipt,) = decode_receipts(path, session.get(path)[0])
    assert receipt.reason == UNCLEAN_ELECTION
    assert receipt.given_up == (TruncatedRange(leader, 10, 20),)
