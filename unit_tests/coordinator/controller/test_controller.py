"""Tests of the choice of the controller, and the controller's reaction to lost sessions and
connections."""

from __future__ import annotations

import pytest

from pybroker.coordinator.controller.writes import ControllerMoved, FencedWriter, Write
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.ports import CreateOp
from unit_tests.coordinator.controller.cluster import Cluster, refused
from unit_tests.patience import until


async def test_one_controller_at_a_time_and_the_others_know_it(cluster: Cluster) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    assert first.controller.is_active
    assert not second.controller.is_active
    assert second.controller.controller_id == 1
    await first.controller.stop()
    await until(lambda: second.controller.is_active)
    assert second.controller.epoch == 2
    assert cluster.json(paths.CONTROLLER)["brokerid"] == 2
    await first.controller.stop()
    assert cluster.json(paths.CONTROLLER)["brokerid"] == 2


async def test_deleting_the_controller_node_forces_a_new_election(cluster: Cluster) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    await cluster.tool.delete(paths.CONTROLLER)
    await until(lambda: first.controller.epoch == 2 or second.controller.epoch == 2)
    winner = cluster.json(paths.CONTROLLER)["brokerid"]
    await until(
        lambda: {first.controller.controller_id, second.controller.controller_id} == {winner}
    )
    assert first.controller.is_active != second.controller.is_active
    await cluster.create("more", {0: (1,)})
    await cluster.received(1, "metadata more-0 leader=1 epoch=0")


async def test_a_single_controller_is_elected_again_when_its_node_is_deleted(
    cluster: Cluster,
) -> None:
    member = await cluster.member(1)
    await cluster.tool.delete(paths.CONTROLLER)
    await until(lambda: member.controller.epoch == 2)
    await cluster.tool.delete(paths.CONTROLLER)
    await until(lambda: member.controller.epoch == 3)
    assert member.controller.is_active


async def test_a_deposed_controller_writes_nothing(cluster: Cluster) -> None:
    await cluster.member(1)
    deposed = FencedWriter(cluster.tool, 1)
    await cluster.tool.set(paths.CONTROLLER_EPOCH, b"9")
    before = cluster.tree.paths()
    with pytest.raises(ControllerMoved):
        await deposed.write_all([Write((CreateOp("/a"),)), Write((CreateOp("/b"),))])
    assert cluster.tree.paths() == before


async def test_a_broker_with_a_newer_controller_makes_the_controller_check(
    cluster: Cluster,
) -> None:
    member = await cluster.member(1)
    cluster.refusals.append(refused(ErrorCode.STALE_CONTROLLER_EPOCH))
    await cluster.create("orders", {0: (1,)})
    await until(lambda: not cluster.refusals)
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    assert member.controller.is_active


async def test_after_an_expired_session_the_controller_is_elected_again(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    member.coord.expire()
    member.controller.session_expired()
    assert not member.controller.is_active
    assert member.controller.controller_id is None
    await member.renew()
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1")
    assert member.controller.is_active
    assert member.controller.epoch == 2
    await cluster.create("more", {0: (1,)})
    await cluster.received(1, "metadata more-0 leader=1 epoch=0")


async def test_a_controller_does_nothing_between_expiry_and_renewal(cluster: Cluster) -> None:
    member = await cluster.member(1)
    member.coord.expire()
    member.controller.session_expired()
    await until(lambda: member.coord.session_id != 0)
    await cluster.create("orders", {0: (1,)})
    await member.coord.sync()
    assert not cluster.exists(paths.CONTROLLER)
    assert cluster.state("orders-0") is None
    await member.renew()
    await cluster.received(1, "lead orders-0 leader=1 epoch=0 isr=1 new")


async def test_a_broken_connection_delays_but_loses_nothing(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.received(1, "brokers 1")
    member.coord.suspend()
    await cluster.create("orders", {0: (1,)})
    member.coord.resume()
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    assert member.controller.epoch == 1


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(12))
async def test_a_topic_creation_survives_any_lost_reply(
    cluster: Cluster, position: int, applied: bool
) -> None:
    member = await cluster.member(1)
    await cluster.received(1, "brokers 1")
    member.lose_request(position, applied=applied)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")
    assert cluster.stored_epoch("orders-0") == cluster.stored_epoch("orders-1") == 0
    assert "lead orders-0 leader=1 epoch=0 isr=1 new" in cluster.lines(1)
    assert member.controller.epoch == 1


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(12))
async def test_a_controller_election_survives_any_lost_reply(
    cluster: Cluster, position: int, applied: bool
) -> None:
    await cluster.create("orders", {0: (1,)})
    member = await cluster.member(1, lose=(position, applied))
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    await until(lambda: member.controller.is_active)
    assert member.controller.epoch == 1


async def test_stop_is_idempotent_and_removes_the_controller_node(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await member.controller.stop()
    await member.controller.stop()
    assert not cluster.exists(paths.CONTROLLER)
    assert cluster.exists(paths.CONTROLLER_EPOCH)
