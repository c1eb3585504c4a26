"""Tests of topics that are created, grow and are replaced: the stored states and the commands to
brokers."""

from __future__ import annotations

from pybroker.coordinator.zookeeper import paths
from pybroker.model import LeaderAndIsr
from unit_tests.coordinator.controller.cluster import Cluster
from unit_tests.patience import until

ORDERS = "/brokers/topics/orders"


async def test_a_new_topic_gets_state_nodes_and_its_broker_gets_a_role(cluster: Cluster) -> None:
    member = await cluster.member(1)
    assert member.controller.is_active
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")
    assert cluster.json(f"{ORDERS}/partitions/0/state") == {
        "controller_epoch": 1,
        "leader": 1,
        "version": 1,
        "leader_epoch": 0,
        "isr": [1],
    }
    assert cluster.lines(1) == [
        "brokers 1",
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
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    roles = [note.command for note in cluster.notes if isinstance(note.command, LeaderAndIsr)]
    command = roles[-1]
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
    await cluster.received(2, "lead orders-0 leader=2 epoch=0 isr=2,1 new")
    await cluster.received(1, "lead orders-0 leader=2 epoch=0 isr=2,1 new")


async def test_a_partition_without_a_live_replica_waits_for_one(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (2,)})
    await cluster.received(1, "metadata orders-0 leader=-1 epoch=-1")
    assert cluster.state("orders-0") is None
    await cluster.member(2)
    await cluster.received(2, "lead orders-0 leader=2 epoch=0 isr=2 new")


async def test_many_partitions_take_several_multis(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", dict.fromkeys(range(450), (1,)))
    await cluster.received(1, "metadata orders-449 leader=1 epoch=0")
    assert all(cluster.stored_epoch(f"orders-{partition}") == 0 for partition in range(450))
    roles = [note.command for note in cluster.notes if isinstance(note.command, LeaderAndIsr)]
    assert [len(command.partitions) for command in roles] == [0, 450]


async def test_a_topic_grows_when_a_tool_rewrites_its_node(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    before = cluster.topic_id("orders")
    grown = {"version": 1, "partitions": {"0": [1], "1": [1]}, "kept": "yes"}
    await cluster.write_json(ORDERS, grown)
    await cluster.received(1, "lead orders-1 leader=1 epoch=0 isr=1 new")
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")
    assert cluster.lines(1).count("lead orders-0 leader=1 epoch=0 isr=1 new") == 1
    assert cluster.topic_id("orders") == before
    assert cluster.json(ORDERS)["kept"] == "yes"


async def test_a_topic_of_an_old_tool_gets_an_id_and_keeps_the_rest(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.write_json(ORDERS, {"version": 1, "partitions": {"0": [1]}, "kept": 7})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    stored = cluster.json(ORDERS)
    assert (stored["version"], stored["kept"], stored["partitions"]) == (3, 7, {"0": [1]})
    assert len(str(stored["topic_id"])) == 22
    assert cluster.exists(paths.topic_id(cluster.topic_id("orders")))


async def test_a_topic_of_an_older_version_gets_a_node_of_its_id(cluster: Cluster) -> None:
    await cluster.create("orders", {0: (1,)})
    identity = paths.topic_id(cluster.topic_id("orders"))
    await cluster.tool.delete(identity)
    before = cluster.json(ORDERS)
    await cluster.member(1)
    await cluster.received(1, "lead orders-0 leader=1 epoch=0 isr=1 new")
    assert cluster.exists(identity)
    assert cluster.json(ORDERS) == before


async def test_a_state_node_that_exists_is_adopted(cluster: Cluster) -> None:
    await cluster.member(1)
    stored = {"version": 1, "leader": -1, "leader_epoch": 4, "isr": [1], "controller_epoch": 1}
    await cluster.prepare_state("orders-0", {**stored, "leader_recovery_state": 1})
    await cluster.write_json(ORDERS, {"version": 1, "partitions": {"0": [1]}})
    await cluster.received(1, "lead orders-0 leader=1 epoch=5 isr=1")
    assert cluster.json(f"{ORDERS}/partitions/0/state")["leader_recovery_state"] == 1


async def test_a_damaged_topic_does_not_stop_the_others(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.tool.create("/brokers/topics/broken", b"{not json")
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "lead orders-0 leader=1 epoch=0 isr=1 new")
    await cluster.write_json("/brokers/topics/broken", {"version": 1, "partitions": {"0": [1]}})
    await cluster.received(1, "lead broken-0 leader=1 epoch=0 isr=1 new")


async def test_a_damaged_state_is_never_overwritten(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.prepare_state("orders-0", ["not", "a", "state"])
    await cluster.write_json(ORDERS, {"version": 1, "partitions": {"0": [1], "1": [1]}})
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")
    node = cluster.tree.node(f"{ORDERS}/partitions/0/state")
    assert node is not None
    assert node[0] == b'["not", "a", "state"]'
    await cluster.delete("orders")
    await until(lambda: not cluster.exists(ORDERS))
    assert "delete orders-0 epoch=-2" in cluster.lines(1)


async def test_brokers_forget_a_topic_whose_nodes_a_tool_removed(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (2,)})
    await cluster.received(1, "metadata orders-0 leader=-1 epoch=-1")
    await cluster.tool.delete(ORDERS)
    await cluster.received(1, "metadata orders-0 leader=-2 epoch=-1")


async def test_a_topic_replaced_by_a_tool_is_a_recreated_topic(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")
    cluster.notes.clear()
    member.coord.suspend()
    for path in reversed([path for path in cluster.tree.paths() if path.startswith(ORDERS)]):
        await cluster.tool.delete(path)
    await cluster.create("orders", {0: (1,)})
    member.coord.resume()
    await cluster.received(1, "metadata orders-1 leader=-2 epoch=0")
    await cluster.received(1, "lead orders-0 leader=1 epoch=0 isr=1 new")
    assert cluster.lines(1).count("lead orders-1 leader=1 epoch=0 isr=1 new") == 0
