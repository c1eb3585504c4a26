"""Test of a workload: its clients use a cluster, and the check of their history finds no
violation.
"""

from __future__ import annotations

from pybroker.testing.history.checker import check, report
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.workload import ProducerKind, Workload, WorkloadOptions


def test_every_kind_of_client_works_and_its_history_is_checked() -> None:
    environment = Environment("workload")
    options = WorkloadOptions(producers=tuple(ProducerKind))
    with SimCluster(environment) as cluster:
        workload = Workload(
            environment, cluster.machine, cluster.network.sockets, cluster.bootstrap, options
        )
        cluster.start()
        assert cluster.run_until_ready()
        workload.start()
        assert cluster.run_until(lambda: workload.is_ready, 20)
        environment.run(environment.now + 6)
        workload.stop()
        assert cluster.run_until(lambda: workload.is_quiet, 30)
        workload.read_all()
        assert cluster.run_until(lambda: workload.is_read, 30)
    assert not workload.failures
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
