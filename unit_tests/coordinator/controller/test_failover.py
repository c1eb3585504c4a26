"""Tests that a new controller corrects everything that brokers missed before its election."""

from __future__ import annotations

import pytest

from pybroker.coordinator.zookeeper import paths
from pybroker.model import Extent, LeaderAndIsr, UpdateMetadata
from unit_tests.coordinator.controller.cluster import Cluster
from unit_tests.patience import until


def full(cluster: Cluster, broker_id: int, kind: type[LeaderAndIsr | UpdateMetadata]) -> list[str]:
    """Return the partitions of the broker's last full command of this kind; fails if there is
    none."""
    commands = [
        note.command
        for note in cluster.notes
        if note.broker_id == broker_id
        and isinstance(note.command, LeaderAndIsr | UpdateMetadata)
        and isinstance(note.command, kind)
        and note.command.extent is Extent.ALL
    ]
    return [str(item.topic_partition) for item in commands[-1].partitions]


def names_all(cluster: Cluster) -> bool:
    return any(getattr(note.command, "extent", 0) != Extent.SOME for note in cluster.notes)


async def test_a_new_controller_sends_a_missed_topic_deletion(
    cluster: Cluster,
) -> None:
    """The old controller dies when the nodes are gone, before it notifies brokers without a
    replica."""
    first = await cluster.member(1)
    await cluster.member(2)
    await cluster.create("orders", {0: (2,)})
    await cluster.create("kept", {0: (2,)})
    await cluster.received(2, "metadata orders-0 leader=2 epoch=0")
    await cluster.received(2, "metadata kept-0 leader=2 epoch=0")
    await first.kill()
    for path in sorted(cluster.tree.paths(), reverse=True):
        if path.startswith("/brokers/topics/orders") or path == paths.topic_config("orders"):
            await cluster.tool.delete(path)
    cluster.notes.clear()
    await cluster.received(2, "metadata kept-0 leader=2 epoch=0")
    assert full(cluster, 2, LeaderAndIsr) == ["kept-0"]
    assert full(cluster, 2, UpdateMetadata) == ["kept-0"]


async def test_a_restarted_broker_gets_all_its_replicas_in_one_command(cluster: Cluster) -> None:
    """The full roles include replicas of partitions without a leader, so the broker does not take
    them for left over."""
    await cluster.member(1)
    second = await cluster.member(2)
    await cluster.create("orders", {0: (1, 2), 1: (1,), 2: (2,)})
    await cluster.received(2, "metadata orders-2 leader=2 epoch=0")
    await second.kill()
    await cluster.received(1, "metadata orders-2 leader=-1 epoch=1")
    cluster.notes.clear()
    await cluster.member(2)
    await cluster.received(2, "metadata orders-2 leader=2 epoch=2")
    assert sorted(full(cluster, 2, LeaderAndIsr)) == ["orders-0", "orders-2"]
    assert sorted(full(cluster, 2, UpdateMetadata)) == ["orders-0", "orders-1", "orders-2"]


async def test_a_topic_node_with_an_invalid_name_is_ignored(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a b", "n" * 300):
        await cluster.write_json(
            f"/brokers/topics/{name}", {"version": 1, "partitions": {"0": [1]}}
        )
    await cluster.create("orders", {0: (1,)})
    await cluster.member(1)
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    assert not any("nnn" in line for line in cluster.lines(1))
    assert "topic ignored node=/brokers/topics/a b reason=" in caplog.text
    assert "n" * 101 not in caplog.text.replace("/brokers/topics/", "")


async def test_an_unparsable_topic_is_not_reported_as_deleted(cluster: Cluster) -> None:
    await cluster.write_json(paths.topic("broken"), {"version": 1, "partitions": "?"})
    await cluster.create("orders", {0: (1,)})
    await cluster.member(1)
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    assert not names_all(cluster)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.received(2, "metadata orders-0 leader=1 epoch=0")
    assert not names_all(cluster)


async def test_brokers_get_topics_in_the_order_of_their_names(
    cluster: Cluster,
) -> None:
    """The order of a set differs from process to process, so simulated runs could not be
    repeated."""
    names = [f"orders-{letter}" for letter in "abcdefgh"]
    first = await cluster.member(1)
    await cluster.member(2)
    for name in reversed(names):
        await cluster.create(name, {0: (2,)})
        await cluster.received(2, f"metadata {name}-0 leader=2 epoch=0")
    await first.kill()
    cluster.notes.clear()
    await cluster.received(2, f"metadata {names[-1]}-0 leader=2 epoch=0")
    assert full(cluster, 2, LeaderAndIsr) == [f"{name}-0" for name in names]
