"""Tests that a broker that lost its log directory is not elected, even if the partition's state
lists it: other replicas would truncate their logs to its empty log.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.test_power_loss import TOPIC, pay, read
from pybroker.model import NO_LEADER
from pybroker.testing.cluster import Cluster
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, data=tmp_path / "data") as cluster:
        yield cluster


def has_no_leader(cluster: Cluster) -> bool:
    state = cluster.partition(TOPIC, 0)
    return state is not None and state.leader == NO_LEADER


def stop_all_but(cluster: Cluster, last: int, *, eligible: int) -> None:
    """Stop the brokers in an order that leaves only `last` in sync, while the broker `eligible` has
    every record, too.
    """
    (first,) = set(cluster.ids) - {last, eligible}
    cluster.terminate(first)
    cluster.terminate(eligible)
    state = cluster.partition(TOPIC, 0)
    assert state is not None and (state.isr, state.eligible) == ((last,), (eligible,))


def test_an_eligible_replica_with_an_empty_directory_does_not_lead(cluster: Cluster) -> None:
    values = asyncio.run(pay(cluster.bootstrap))
    stop_all_but(cluster, 1, eligible=2)
    shutil.rmtree(cluster.log_dir(2))
    cluster.kill(1)
    cluster.restart(2)
    wait_until(lambda: has_no_leader(cluster), what="broker 2 refuses to lead")
    for broker in (1, 3):
        cluster.restart(broker)
    cluster.wait_until_in_sync(TOPIC)
    assert asyncio.run(read(cluster.bootstrap)) == values


def test_an_accepted_loss_does_not_lose_records_of_other_replicas(cluster: Cluster) -> None:
    values = asyncio.run(pay(cluster.bootstrap))
    stop_all_but(cluster, 2, eligible=1)
    cluster.kill(2)
    gone = cluster.log_dir(2)
    shutil.rmtree(gone)
    cluster.restart(2)
    wait_until(lambda: has_no_leader(cluster), what="broker 2 refuses to lead")
    cluster.terminate(2)
    (gone / "pybroker.accept-loss").write_text(f"{gone}\n")
    cluster.restart(2)
    assert has_no_leader(cluster)
    for broker in (1, 3):
        cluster.restart(broker)
    cluster.wait_until_in_sync(TOPIC)
    assert asyncio.run(read(cluster.bootstrap)) == values
