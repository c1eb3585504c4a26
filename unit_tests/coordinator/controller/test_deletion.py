"""Tests of topic deletions: every live replica confirms, and the deletion is finished despite
failures."""

from __future__ import annotations

import uuid

import pytest

from pybroker.coordinator.controller.deletion import remove_topic
from pybroker.coordinator.controller.writes import FencedWriter
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from unit_tests.coordinator.controller.cluster import Cluster, key
from unit_tests.patience import until

ORDERS = "/brokers/topics/orders"


async def test_a_deleted_topic_is_removed_from_brokers_and_zookeeper(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")
    cluster.notes.clear()
    await cluster.tool.create(paths.losses("orders"))
    await cluster.tool.create(paths.loss(key("orders-0")))
    await cluster.delete("orders")
    await until(lambda: not cluster.exists(paths.delete_topic("orders")))
    assert cluster.lines(1) == [
        "brokers 1",
        "metadata orders-0 leader=-2 epoch=0",
        "metadata orders-1 leader=-2 epoch=0",
        "delete orders-0 epoch=-2",
        "delete orders-1 epoch=-2",
    ]
    assert not [path for path in cluster.tree.paths() if "orders" in path]
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "lead orders-0 leader=1 epoch=0 isr=1 new")


async def test_nodes_stay_until_every_live_replica_has_confirmed(cluster: Cluster) -> None:
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.received(2, "metadata orders-0 leader=1 epoch=0")
    cluster.deletion_gate.clear()
    await cluster.delete("orders")
    await cluster.received(1, "delete orders-0 epoch=-2")
    await cluster.received(2, "delete orders-0 epoch=-2")
    assert cluster.exists(ORDERS)
    await second.kill()
    cluster.deletion_gate.set()
    await until(lambda: not cluster.exists(ORDERS))


async def test_a_deletion_survives_a_restart_in_the_middle(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    cluster.deletion_gate.clear()
    await cluster.delete("orders")
    await cluster.received(1, "delete orders-0 epoch=-2")
    await member.kill()
    assert cluster.exists(ORDERS)
    cluster.deletion_gate.set()
    cluster.notes.clear()
    await cluster.member(1)
    await until(lambda: not cluster.exists(paths.delete_topic("orders")))
    assert not cluster.exists(ORDERS)
    assert not any(line.startswith("lead") for line in cluster.lines(1))


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(22))
async def test_a_deletion_survives_any_lost_reply(
    cluster: Cluster, position: int, applied: bool
) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    member.lose_request(position, applied=applied)
    await cluster.delete("orders")
    await until(lambda: not [path for path in cluster.tree.paths() if "orders" in path])
    assert member.controller.epoch == 1


async def test_a_repeated_removal_keeps_the_recreated_topic(
    cluster: Cluster,
) -> None:
    """The reply was lost, and a client recreated the topic at once."""
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    earlier = uuid.UUID(int=7)
    epoch = cluster.tree.node(paths.CONTROLLER_EPOCH)
    assert epoch is not None
    before = cluster.tree.paths()
    writer = FencedWriter(member.coord, epoch[1].version)
    assert await remove_topic(member.coord, writer, "orders", earlier)
    assert cluster.tree.paths() == before
    assert await remove_topic(member.coord, writer, "orders", cluster.topic_id("orders"))
    assert not [path for path in cluster.tree.paths() if "orders" in path]


async def test_a_replica_that_cannot_be_deleted_is_asked_again(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    cluster.refusals.extend([ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
    await cluster.delete("orders")
    await cluster.received(1, "delete orders-0 epoch=-2")
    await until(lambda: not cluster.exists(ORDERS))


async def test_a_request_for_a_topic_that_does_not_exist_is_removed(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.tool.create(paths.delete_topic("nothing"))
    await until(lambda: not cluster.exists(paths.delete_topic("nothing")))


async def test_without_delete_topic_enable_the_request_is_removed(cluster: Cluster) -> None:
    await cluster.member(1, delete_topic_enable=False)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    await cluster.delete("orders")
    await until(lambda: not cluster.exists(paths.delete_topic("orders")))
    assert cluster.exists(ORDERS)
    assert cluster.stored_epoch("orders-0") == 0


async def test_a_topic_created_and_deleted_between_two_reads_is_deleted(
    cluster: Cluster,
) -> None:
    await cluster.create("orders", {0: (1,)})
    await cluster.delete("orders")
    await cluster.member(1)
    await until(lambda: not cluster.exists(paths.delete_topic("orders")))
    assert not cluster.exists(ORDERS)
