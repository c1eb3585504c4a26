"""The controller end to end, on the in-memory service: what it stores and what it tells brokers."""

from __future__ import annotations

import pytest

from pybroker.coordinator.controller.writes import ControllerMoved, FencedWriter, Write
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.model import LeaderAndIsr
from pybroker.ports import CreateOp
from unit_tests.coordinator.controller.cluster import Cluster, refused, until

ORDERS = "/brokers/topics/orders"


# ---- topics


async def test_a_new_topic_gets_state_nodes_and_the_broker_is_told(cluster: Cluster) -> None:
    member = await cluster.member(1)
    assert member.controller.is_active
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    assert cluster.json(f"{ORDERS}/partitions/0/state") == {
        "controller_epoch": 1,
        "leader": 1,
        "version": 1,
        "leader_epoch": 0,
        "isr": [1],
    }
    assert cluster.lines(1) == [
        "brokers 1",
        "lead orders-0 leader=1 epoch=0 isr=1 new",
        "lead orders-1 leader=1 epoch=0 isr=1 new",
        "brokers 1",
        "metadata orders-0 leader=1 epoch=0",
        "metadata orders-1 leader=1 epoch=0",
    ]


async def test_commands_carry_the_epochs_and_the_topic_id(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    command = next(note.command for note in cluster.notes if isinstance(note.command, LeaderAndIsr))
    registration = cluster.tree.node(paths.broker(1))
    assert registration is not None
    assert command.controller_id == 1
    assert command.controller_epoch == member.controller.epoch
    assert command.broker_epoch == registration[1].czxid
    assert command.partitions[0].topic_id == cluster.topic_id("orders")
    assert command.partitions[0].partition_epoch == 0


async def test_the_replicas_that_are_alive_begin_in_sync(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(1))
    await cluster.create("orders", {0: (3, 2, 1)})
    await cluster.told(2, "lead orders-0 leader=2 epoch=0 isr=2,1 new")
    await cluster.told(1, "lead orders-0 leader=2 epoch=0 isr=2,1 new")


async def test_a_partition_without_a_live_replica_waits_for_one(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (2,)})
    await cluster.told(1, "metadata orders-0 leader=-1 epoch=-1")
    assert cluster.state("orders-0") is None
    await cluster.member(2)
    await cluster.told(2, "lead orders-0 leader=2 epoch=0 isr=2 new")


async def test_many_partitions_take_several_multis(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", dict.fromkeys(range(450), (1,)))
    await cluster.told(1, "metadata orders-449 leader=1 epoch=0")
    assert all(cluster.stored_epoch(f"orders-{partition}") == 0 for partition in range(450))
    leading = [note for note in cluster.notes if isinstance(note.command, LeaderAndIsr)]
    assert len(leading) == 1


async def test_a_topic_grows_when_a_tool_rewrites_its_node(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    before = cluster.topic_id("orders")
    grown = {"version": 1, "partitions": {"0": [1], "1": [1]}, "kept": "yes"}
    await cluster.write_json(ORDERS, grown)
    await cluster.told(1, "lead orders-1 leader=1 epoch=0 isr=1 new")
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    assert cluster.lines(1).count("lead orders-0 leader=1 epoch=0 isr=1 new") == 1
    assert cluster.topic_id("orders") == before
    assert cluster.json(ORDERS)["kept"] == "yes"


async def test_a_topic_of_an_old_tool_gets_an_id_and_keeps_the_rest(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.write_json(ORDERS, {"version": 1, "partitions": {"0": [1]}, "kept": 7})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    stored = cluster.json(ORDERS)
    assert (stored["version"], stored["kept"], stored["partitions"]) == (3, 7, {"0": [1]})
    assert len(str(stored["topic_id"])) == 22


async def test_a_state_node_that_exists_is_adopted(cluster: Cluster) -> None:
    await cluster.member(1)
    stored = {"version": 1, "leader": -1, "leader_epoch": 4, "isr": [1], "controller_epoch": 1}
    await cluster.prepare_state("orders-0", {**stored, "leader_recovery_state": 1})
    await cluster.write_json(ORDERS, {"version": 1, "partitions": {"0": [1]}})
    await cluster.told(1, "lead orders-0 leader=1 epoch=5 isr=1")
    assert cluster.json(f"{ORDERS}/partitions/0/state")["leader_recovery_state"] == 1


async def test_a_damaged_topic_does_not_stop_the_others(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.tool.create("/brokers/topics/broken", b"{not json")
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "lead orders-0 leader=1 epoch=0 isr=1 new")
    await cluster.write_json("/brokers/topics/broken", {"version": 1, "partitions": {"0": [1]}})
    await cluster.told(1, "lead broken-0 leader=1 epoch=0 isr=1 new")


async def test_a_damaged_state_is_never_overwritten(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.prepare_state("orders-0", ["not", "a", "state"])
    await cluster.write_json(ORDERS, {"version": 1, "partitions": {"0": [1], "1": [1]}})
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    node = cluster.tree.node(f"{ORDERS}/partitions/0/state")
    assert node is not None
    assert node[0] == b'["not", "a", "state"]'
    await cluster.delete("orders")
    await until(lambda: not cluster.exists(ORDERS))
    assert "delete orders-0 epoch=-2" in cluster.lines(1)


async def test_brokers_forget_a_topic_whose_nodes_were_removed_by_hand(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (2,)})
    await cluster.told(1, "metadata orders-0 leader=-1 epoch=-1")
    await cluster.tool.delete(ORDERS)
    await cluster.told(1, "metadata orders-0 leader=-2 epoch=-1")


async def test_a_topic_that_was_replaced_by_hand_is_another_topic(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    cluster.notes.clear()
    member.coord.suspend()
    for path in reversed([path for path in cluster.tree.paths() if path.startswith(ORDERS)]):
        await cluster.tool.delete(path)
    await cluster.create("orders", {0: (1,)})
    member.coord.resume()
    await cluster.told(1, "metadata orders-1 leader=-2 epoch=0")
    await cluster.told(1, "lead orders-0 leader=1 epoch=0 isr=1 new")
    assert cluster.lines(1).count("lead orders-1 leader=1 epoch=0 isr=1 new") == 0


# ---- brokers


async def test_a_restarted_broker_leads_again_with_the_next_leader_epoch(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    await member.kill()
    cluster.notes.clear()
    restarted = await cluster.member(1)
    await cluster.told(1, "metadata orders-0 leader=1 epoch=1")
    assert restarted.controller.epoch == 2
    assert cluster.lines(1) == [
        "brokers 1",
        "lead orders-0 leader=1 epoch=1 isr=1",
        "brokers 1",
        "metadata orders-0 leader=1 epoch=1",
    ]


async def test_a_new_controller_leaves_a_leader_that_lives_alone(cluster: Cluster) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1)})
    await cluster.told(2, "metadata orders-0 leader=2 epoch=0")
    await first.controller.stop()
    await until(lambda: second.controller.is_active)
    await until(lambda: cluster.lines(2).count("lead orders-0 leader=2 epoch=0 isr=2,1") == 1)
    assert cluster.stored_epoch("orders-0") == 0


async def test_another_replica_leads_when_the_leader_dies(cluster: Cluster) -> None:
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1), 1: (1, 2), 2: (2,)})
    await cluster.told(2, "metadata orders-2 leader=2 epoch=0")
    await second.kill()
    await cluster.told(1, "lead orders-0 leader=1 epoch=1 isr=1")
    await cluster.told(1, "lead orders-1 leader=1 epoch=1 isr=1")
    await cluster.told(1, "metadata orders-2 leader=-1 epoch=1")
    alone = cluster.state("orders-2")
    assert alone is not None
    assert (alone.leader, alone.isr) == (-1, (2,))
    await cluster.member(2)
    await cluster.told(2, "lead orders-2 leader=2 epoch=2 isr=2")
    await cluster.told(2, "lead orders-0 leader=1 epoch=1 isr=1")


async def test_an_isr_that_the_leader_has_just_written_is_respected(cluster: Cluster) -> None:
    """The controller's picture of the ISR is old when the leader dies."""
    await cluster.member(1)
    second, _ = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 1, 3), 1: (2, 1, 3)})
    await cluster.told(3, "metadata orders-1 leader=2 epoch=0")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "isr": [2, 3]})
    await second.kill()
    await cluster.told(1, "lead orders-0 leader=3 epoch=1 isr=3")
    await cluster.told(1, "lead orders-1 leader=1 epoch=1 isr=1,3")


async def test_a_state_of_a_newer_controller_deposes(cluster: Cluster) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1)})
    await cluster.told(2, "metadata orders-0 leader=2 epoch=0")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "controller_epoch": 99})
    await second.kill()
    await until(lambda: not first.controller.is_active)


async def test_a_bounced_broker_was_lost_and_has_started(cluster: Cluster) -> None:
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1), 1: (2,)})
    await cluster.told(2, "metadata orders-1 leader=2 epoch=0")
    cluster.notes.clear()
    await cluster.tool.delete(paths.broker(2))
    await second.register()
    await cluster.told(2, "lead orders-1 leader=2 epoch=2 isr=2")
    await cluster.told(2, "lead orders-0 leader=1 epoch=1 isr=1")


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(12))
async def test_any_lost_reply_of_a_bounce_is_made_good(
    cluster: Cluster, position: int, applied: bool
) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1), 1: (2,)})
    await cluster.told(2, "metadata orders-1 leader=2 epoch=0")
    first.lose_request(position, applied=applied)
    await cluster.tool.delete(paths.broker(2))
    await second.register()
    await until(
        lambda: any(line.startswith("lead orders-1 leader=2 epoch=2") for line in cluster.lines(2))
    )
    assert first.controller.epoch == 1


# ---- who is the controller


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


async def test_an_operator_who_deletes_the_node_forces_a_new_election(cluster: Cluster) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    await cluster.tool.delete(paths.CONTROLLER)
    await until(lambda: first.controller.epoch == 2 or second.controller.epoch == 2)
    winner = cluster.json(paths.CONTROLLER)["brokerid"]
    await until(
        lambda: {first.controller.controller_id, second.controller.controller_id} == {winner}
    )
    assert first.controller.is_active != second.controller.is_active
    await cluster.create("more", {0: (1,)})
    await cluster.told(1, "metadata more-0 leader=1 epoch=0")


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


async def test_a_broker_that_knows_a_newer_controller_makes_us_look(cluster: Cluster) -> None:
    member = await cluster.member(1)
    cluster.refusals.append(refused(ErrorCode.STALE_CONTROLLER_EPOCH))
    await cluster.create("orders", {0: (1,)})
    await until(lambda: not cluster.refusals)
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    assert member.controller.is_active


async def test_after_a_session_expired_the_broker_carries_on(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    member.coord.expire()
    member.controller.session_expired()
    assert not member.controller.is_active
    assert member.controller.controller_id is None
    await member.renew()
    await cluster.told(1, "lead orders-0 leader=1 epoch=1 isr=1")
    assert member.controller.is_active
    assert member.controller.epoch == 2
    await cluster.create("more", {0: (1,)})
    await cluster.told(1, "metadata more-0 leader=1 epoch=0")


async def test_nothing_is_done_between_expiry_and_renewal(cluster: Cluster) -> None:
    member = await cluster.member(1)
    member.coord.expire()
    member.controller.session_expired()
    await until(lambda: member.coord.session_id != 0)
    await cluster.create("orders", {0: (1,)})
    await member.coord.sync()
    assert not cluster.exists(paths.CONTROLLER)
    assert cluster.state("orders-0") is None
    await member.renew()
    await cluster.told(1, "lead orders-0 leader=1 epoch=0 isr=1 new")


async def test_a_broken_connection_delays_but_loses_nothing(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.told(1, "brokers 1")
    member.coord.suspend()
    await cluster.create("orders", {0: (1,)})
    member.coord.resume()
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    assert member.controller.epoch == 1


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(12))
async def test_any_lost_reply_of_a_creation_is_made_good(
    cluster: Cluster, position: int, applied: bool
) -> None:
    member = await cluster.member(1)
    await cluster.told(1, "brokers 1")
    member.lose_request(position, applied=applied)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    assert cluster.stored_epoch("orders-0") == cluster.stored_epoch("orders-1") == 0
    assert "lead orders-0 leader=1 epoch=0 isr=1 new" in cluster.lines(1)
    assert member.controller.epoch == 1


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(12))
async def test_any_lost_reply_of_an_election_is_made_good(
    cluster: Cluster, position: int, applied: bool
) -> None:
    await cluster.create("orders", {0: (1,)})
    member = await cluster.member(1, lose=(position, applied))
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    await until(lambda: member.controller.is_active)
    assert member.controller.epoch == 1


async def test_stop_is_idempotent_and_leaves_the_office_vacant(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await member.controller.stop()
    await member.controller.stop()
    assert not cluster.exists(paths.CONTROLLER)
    assert cluster.exists(paths.CONTROLLER_EPOCH)


# ---- commands that fail


@pytest.mark.parametrize(
    "refusal",
    [ConnectionError("gone"), TimeoutError(), refused(ErrorCode.REQUEST_TIMED_OUT), ValueError()],
)
async def test_a_command_that_fails_is_sent_again(cluster: Cluster, refusal: Exception) -> None:
    await cluster.member(1)
    await cluster.told(1, "brokers 1")
    cluster.refusals.extend([refusal] * 3)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    assert "lead orders-1 leader=1 epoch=0 isr=1 new" in cluster.lines(1)


async def test_a_partition_that_fails_is_sent_again(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.told(1, "brokers 1")
    cluster.refusals.append(ErrorCode.KAFKA_STORAGE_ERROR)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "lead orders-0 leader=1 epoch=0 isr=1 new")
    assert not cluster.refusals


# ---- deletion


async def test_a_deleted_topic_goes_from_brokers_and_service(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.told(1, "metadata orders-1 leader=1 epoch=0")
    cluster.notes.clear()
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
    await cluster.told(1, "lead orders-0 leader=1 epoch=0 isr=1 new")


async def test_nodes_stay_until_every_live_replica_has_confirmed(cluster: Cluster) -> None:
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.told(2, "metadata orders-0 leader=1 epoch=0")
    cluster.deletion_gate.clear()
    await cluster.delete("orders")
    await cluster.told(1, "delete orders-0 epoch=-2")
    await cluster.told(2, "delete orders-0 epoch=-2")
    assert cluster.exists(ORDERS)
    await second.kill()
    cluster.deletion_gate.set()
    await until(lambda: not cluster.exists(ORDERS))


async def test_a_deletion_survives_a_restart_in_the_middle(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    cluster.deletion_gate.clear()
    await cluster.delete("orders")
    await cluster.told(1, "delete orders-0 epoch=-2")
    await member.kill()
    assert cluster.exists(ORDERS)
    cluster.deletion_gate.set()
    cluster.notes.clear()
    await cluster.member(1)
    await until(lambda: not cluster.exists(paths.delete_topic("orders")))
    assert not cluster.exists(ORDERS)
    assert not any(line.startswith("lead") for line in cluster.lines(1))


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(16))
async def test_any_lost_reply_of_a_deletion_is_made_good(
    cluster: Cluster, position: int, applied: bool
) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    member.lose_request(position, applied=applied)
    await cluster.delete("orders")
    await until(lambda: not [path for path in cluster.tree.paths() if "orders" in path])
    assert member.controller.epoch == 1


async def test_a_replica_that_cannot_be_deleted_is_asked_again(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    cluster.refusals.extend([ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
    await cluster.delete("orders")
    await cluster.told(1, "delete orders-0 epoch=-2")
    await until(lambda: not cluster.exists(ORDERS))


async def test_a_request_for_a_topic_that_does_not_exist_is_removed(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.tool.create(paths.delete_topic("nothing"))
    await until(lambda: not cluster.exists(paths.delete_topic("nothing")))


async def test_without_delete_topic_enable_the_request_is_removed(cluster: Cluster) -> None:
    await cluster.member(1, delete_topic_enable=False)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    await cluster.delete("orders")
    await until(lambda: not cluster.exists(paths.delete_topic("orders")))
    assert cluster.exists(ORDERS)
    assert cluster.stored_epoch("orders-0") == 0


async def test_a_topic_created_and_deleted_before_anyone_looked_is_deleted(
    cluster: Cluster,
) -> None:
    await cluster.create("orders", {0: (1,)})
    await cluster.delete("orders")
    await cluster.member(1)
    await until(lambda: not cluster.exists(paths.delete_topic("orders")))
    assert not cluster.exists(ORDERS)
