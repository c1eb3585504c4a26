"""A cluster that is watched: what it does right is found right, and a cut that must not be is seen,
however soon it would be mended."""

from __future__ import annotations

import dataclasses

from pybroker.testing.history.checker import check, report
from pybroker.testing.history.model import NANOSECONDS, Calm
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.cluster_record import ClusterRecord
from pybroker.testing.simulation.watching import LiveWatch, read_files
from pybroker.testing.simulation.workload import Workload, WorkloadOptions
from pybroker.testing.simulation.workload.recorder import nanoseconds
from pybroker.testing.simulation.world import World

OPTIONS = WorkloadOptions(topic_configs={"min.insync.replicas": "2"}, churn_mean_s=3.0)


def kill_in_turn(cluster: SimCluster, workload: Workload) -> None:
    """Each broker, and start it again; then all is well."""
    cluster.start()
    assert cluster.run_until_ready()
    workload.start()
    world = cluster.world
    for broker in cluster.brokers.values():
        world.run(world.now + 1)
        broker.machine.kill()
        world.run(world.now + 0.5)
        broker.start()
    workload.history.calm = Calm(nanoseconds(world.now), 12 * NANOSECONDS)
    world.run(world.now + 12)
    workload.stop()
    assert cluster.run_until(lambda: workload.is_quiet, 30)


def test_a_cluster_whose_brokers_are_killed_keeps_every_rule_and_invariant() -> None:
    world = World("watched")
    with SimCluster(world) as cluster:
        machine, sockets = cluster.machine, cluster.network.sockets
        workload = Workload(world, machine, sockets, cluster.bootstrap, OPTIONS)
        record, history = ClusterRecord(workload.history), workload.history
        cluster.zookeeper.on_commit.append(record.committed)
        with LiveWatch(world, cluster.brokers, record) as watch:
            watch.start()
            kill_in_turn(cluster, workload)
            workload.read_all(record.alive())
            assert cluster.run_until(lambda: workload.is_read, 30)
            world.run(world.now + 1)
            read_files(cluster.brokers.values(), record)
            history.may_lose = False
            found = [*check(history), *watch.invariants.violations]
            assert not found, report(found)
            assert not workload.failures
            assert len(history.files) == 3 * len(record.alive())
            assert {state.partition for state in history.states} >= set(record.alive())
            assert history.offices

            key = record.alive()[0]
            state = record.states[key]
            follower = next(each for each in state.isr if each != state.leader)
            rooms = cluster.brokers[follower].rooms
            assert rooms is not None
            rooms.replicas.partitions[key].truncate_to(0)
            assert [each.rule for each in watch.invariants.violations] == ["committed-kept"]

            read = history.final()[key]
            begin = read.records[len(read.records) // 2].offset
            rooms = cluster.brokers[state.leader].rooms
            assert rooms is not None
            rooms.replicas.partitions[key].log.advance_log_start(begin)
            watch.look()
            watch.forget_deleted()
            assert history.final()[key] == read, "nothing is to be deleted"
            history.expires = True
            watch.forget_deleted()
            kept = tuple(each for each in read.records if each.offset >= begin)
            assert history.final()[key] == dataclasses.replace(read, start=begin, records=kept)
