"""The clients of a workload load a cluster, survive being killed, and what they write down is
judged well; the same in every process."""

from __future__ import annotations

import pytest

from pybroker.testing.history.checker import check, report
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.view import stored_states
from pybroker.testing.simulation.workload import ProducerKind, Workload, WorkloadOptions
from pybroker.testing.simulation.world import World
from unit_tests.simulation.processes import outputs_of

BUSY = WorkloadOptions(
    topics=4,
    partitions=1,
    producers=tuple(ProducerKind),
    records_per_s=8.0,
    crash_mean_s=3.0,
    churn_mean_s=2.0,
    election_mean_s=2.0,
)


def begun(cluster: SimCluster, world: World, options: WorkloadOptions) -> Workload:
    """A workload whose topics exist, on a cluster that it starts."""
    workload = Workload(world, cluster.machine, cluster.network.sockets, cluster.bootstrap, options)
    cluster.start()
    assert cluster.run_until_ready()
    workload.start()
    assert cluster.run_until(lambda: workload.is_ready, 20)
    return workload


def load(seed: str, options: WorkloadOptions, seconds: float = 6.0) -> tuple[Workload, str]:
    """A run without faults from its beginning to the final reads, and the digest of its trace."""
    world = World(seed)
    with SimCluster(world) as cluster:
        workload = begun(cluster, world, options)
        world.run(world.now + seconds)
        workload.stop()
        assert cluster.run_until(lambda: workload.is_quiet, 30)
        workload.read_all()
        assert cluster.run_until(lambda: workload.is_read, 30)
    assert not workload.failures
    return workload, world.digest


def test_every_kind_of_client_works_and_is_judged() -> None:
    workload, _ = load("workload", WorkloadOptions(producers=tuple(ProducerKind)))
    history = workload.history
    kinds = {name.split("-", 1)[1].rpartition("-")[0] for name, _ in history.producers}
    assert kinds == {kind.value for kind in ProducerKind}
    for name in {name for name, _ in history.producers}:
        sent = [send for send in history.sends.values() if send.identity.producer == name]
        assert len(sent) > 10
        assert all(send.outcome == "ok" for send in sent)
    assert set(workload.delivered) == set(workload.acked) == set(workload.catalog.partitions())
    assert history.latest
    assert len(history.finals) == 2 * len(workload.catalog.partitions())
    stored = sum(len(read.records) for read in history.finals) // 2
    assert stored == len(history.sends)
    found = check(history)
    assert not found, report(found)


def test_a_value_that_is_taken_away_is_missed() -> None:
    workload, _ = load("loss", WorkloadOptions(partitions=1), seconds=2.0)
    history = workload.history
    send = next(send for send in history.sends.values() if send.outcome == "ok")
    del history.sends[send.value]
    assert {each.rule for each in check(history)} == {"no-phantom"}
    history.sends[send.value] = send
    send.offset += 1
    assert {"acked-present", "one-value-per-offset"} <= {each.rule for each in check(history)}


CHURN = WorkloadOptions(topics=1, partitions=1, crash_mean_s=1.0, churn_mean_s=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_for_a_topic_is_one(seed: int) -> None:
    """Topics cannot go while a broker hears nothing, and an admin that was killed has forgotten
    that they are about to."""
    world = World(f"doomed {seed}")
    with SimCluster(world) as cluster:
        workload = begun(cluster, world, CHURN)
        names = [broker.machine.name for broker in cluster.brokers.values()]
        for name in names:
            others = [each for each in names if each != name]
            cluster.links.cut(name, others)
            for other in others:
                cluster.links.cut(other, [name])
            world.run(world.now + 6)
            cluster.links.heal_all()
        workload.stop()
        assert cluster.run_until(lambda: workload.is_quiet, 60)
        world.run(world.now + 20)
        assert {key.topic for key in stored_states(cluster)} >= set(workload.catalog.topics)


PROGRAM = """
import hashlib
from unit_tests.simulation.test_workload import BUSY, load
workload, digest = load("busy", BUSY, 3.0)
print(digest, hashlib.sha256(repr(workload.history).encode()).hexdigest())
"""


def test_killed_clients_and_changing_topics_are_the_same_in_every_process() -> None:
    assert len(outputs_of(PROGRAM)) == 1
