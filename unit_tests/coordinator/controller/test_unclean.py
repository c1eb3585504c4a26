"""Tests of unclean elections: they happen only if they are allowed, and they write a loss
receipt."""

from __future__ import annotations

import dataclasses

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.policies import Policy, policy_of
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.loss_receipts import (
    UNCLEAN_ELECTION,
    LossReceipt,
    decode_receipts,
)
from pybroker.model import NO_LEADER
from unit_tests.coordinator.controller.cluster import Cluster, Member, key
from unit_tests.patience import until

KEY = key("orders-0")


async def leaderless(cluster: Cluster, **options: str) -> Member:
    """Make `orders-0` leaderless: its replicas are on brokers 2 and 3, and only the one on broker
    2, which has died, was in sync. Return the controller."""
    first = await cluster.member(1)
    second, _ = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 3)})
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    if options:
        await cluster.set_options("orders", **options)
    path = paths.partition_state(KEY)
    await cluster.write_json(path, {**cluster.json(path), "isr": [2]})
    await second.kill()
    await cluster.received(3, "metadata orders-0 leader=-1 epoch=1")
    return first


def receipts(cluster: Cluster) -> tuple[LossReceipt, ...]:
    node = cluster.tree.node(paths.loss(KEY))
    return () if node is None else decode_receipts("/", node[0])


async def test_no_replica_outside_the_isr_leads(cluster: Cluster) -> None:
    controller = (await leaderless(cluster)).controller
    await cluster.set_options("orders", retention_ms="1000")
    await cluster.create("other", {0: (3,)})
    await cluster.received(3, "metadata other-0 leader=3 epoch=0")
    state = cluster.state("orders-0")
    assert state is not None
    assert (state.leader, state.isr) == (NO_LEADER, (2,))
    assert controller.unclean_elections == 0
    assert receipts(cluster) == ()


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":1,"config":{"unclean.leader.election.enable":"false"',
        b'{"version":1,"config":{"unclean.leader.election.enable":"flase"}}',
    ],
)
async def test_unreadable_topic_options_allow_no_unclean_election(
    cluster: Cluster, data: bytes
) -> None:
    """The broker's default allows unclean elections, and the topic's option forbade them."""
    cluster.config = BrokerConfig(unclean_leader_election_enable=True)
    controller = (await leaderless(cluster, unclean_leader_election_enable="false")).controller
    await cluster.tool.set(paths.topic_config("orders"), data)
    controller.policies_changed({"orders"})
    await cluster.create("other", {0: (3,)})
    await cluster.received(3, "metadata other-0 leader=3 epoch=0")
    assert controller.unclean_elections == 0
    assert receipts(cluster) == ()


async def test_allowing_unclean_elections_elects_and_writes_a_receipt(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    controller = (await leaderless(cluster)).controller
    await cluster.set_options("orders", unclean_leader_election_enable="true")
    await cluster.received(3, "lead orders-0 leader=3 epoch=2 isr=3")
    assert controller.unclean_elections == 1
    expected = LossReceipt(
        leader=3,
        leader_epoch=2,
        reason=UNCLEAN_ELECTION,
        isr_before=(2,),
        replicas=(2, 3),
        timestamp_ms=cluster.clock.wall_ms(),
    )
    assert receipts(cluster) == (expected,)
    (line,) = [each for each in caplog.messages if each.startswith("loss receipt partition=")]
    assert "partition=orders-0 reason=unclean-election leader=3 leader_epoch=2" in line


async def test_setting_the_clusters_default_elects(cluster: Cluster) -> None:
    controller = (await leaderless(cluster)).controller
    cluster.config = dataclasses.replace(cluster.config, unclean_leader_election_enable=True)
    controller.policies_changed(None)
    await cluster.received(3, "lead orders-0 leader=3 epoch=2 isr=3")


async def test_the_topics_own_option_overrides_the_default(cluster: Cluster) -> None:
    cluster.config = dataclasses.replace(cluster.config, unclean_leader_election_enable=True)
    await cluster.write_json(
        paths.topic_config("orders"),
        {"version": 1, "config": {"unclean.leader.election.enable": "false"}},
    )
    first = await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    for name in ("orders", "other"):
        await cluster.tool.create(paths.topic(name), b'{"version":1,"partitions":{"0":[2,1]}}')
        await cluster.received(2, f"metadata {name}-0 leader=2 epoch=0")
        path = paths.partition_state(key(f"{name}-0"))
        await cluster.write_json(path, {**cluster.json(path), "isr": [2]})
    await second.kill()
    await cluster.received(1, "lead other-0 leader=1 epoch=1 isr=1")
    await cluster.received(1, "metadata orders-0 leader=-1 epoch=1")
    assert first.controller.unclean_elections == 1


async def test_receipts_accumulate_and_are_deleted_with_their_topic(cluster: Cluster) -> None:
    await leaderless(cluster)
    await cluster.set_options("orders", unclean_leader_election_enable="true")
    await cluster.received(3, "lead orders-0 leader=3 epoch=2 isr=3")
    await cluster.member(2)
    await cluster.received(2, "lead orders-0 leader=3 epoch=2 isr=3")
    third = next(member for member in cluster.members if member.id == 3)
    await third.kill()
    await cluster.received(2, "lead orders-0 leader=2 epoch=3 isr=2")
    assert [(each.leader, each.leader_epoch) for each in receipts(cluster)] == [(3, 2), (2, 3)]
    await cluster.delete("orders")
    await until(lambda: not cluster.exists(paths.topic("orders")))
    assert not cluster.exists(paths.losses("orders"))


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(8))
async def test_an_unclean_election_has_one_receipt_after_any_lost_reply(
    cluster: Cluster, position: int, applied: bool
) -> None:
    first = await leaderless(cluster)
    first.lose_request(position, applied=applied)
    await cluster.set_options("orders", unclean_leader_election_enable="true")
    await cluster.received(3, "lead orders-0 leader=3 epoch=2 isr=3")
    assert [each.leader_epoch for each in receipts(cluster)] == [2]
    assert first.controller.unclean_elections == 1


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(12))
async def test_all_partitions_get_leaders_after_any_lost_reply(
    cluster: Cluster, position: int, applied: bool
) -> None:
    first = await cluster.member(1)
    second, _ = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    for name in ("orders", "other"):
        await cluster.create(name, {0: (2, 3)})
        await cluster.received(3, f"metadata {name}-0 leader=2 epoch=0")
    await cluster.set_options("orders", unclean_leader_election_enable="true")
    path = paths.partition_state(KEY)
    await cluster.write_json(path, {**cluster.json(path), "isr": [2]})
    first.lose_request(position, applied=applied)
    await second.kill()
    await cluster.received(3, "lead orders-0 leader=3 epoch=1 isr=3")
    await cluster.received(3, "lead other-0 leader=3 epoch=1 isr=3")


async def test_a_malformed_receipt_is_replaced(cluster: Cluster) -> None:
    await leaderless(cluster)
    await cluster.tool.create(paths.losses("orders"))
    await cluster.tool.create(paths.loss(KEY), b"?")
    await cluster.set_options("orders", unclean_leader_election_enable="true")
    await cluster.received(3, "lead orders-0 leader=3 epoch=2 isr=3")
    assert len(receipts(cluster)) == 1


async def test_a_replica_that_left_a_too_small_isr_may_lead_without_a_loss(
    cluster: Cluster,
) -> None:
    await cluster.member(1)
    second, third = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 3)})
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    await cluster.set_options("orders", min_insync_replicas="2")
    await third.kill()
    await cluster.received(2, "lead orders-0 leader=2 epoch=1 isr=2 eligible=3")
    state = cluster.state("orders-0")
    assert state is not None and state.eligible == (3,)
    await cluster.member(3)
    await cluster.received(3, "lead orders-0 leader=2 epoch=1 isr=2 eligible=3")
    await second.kill()
    await cluster.received(3, "lead orders-0 leader=3 epoch=2 isr=3 eligible=2")
    state = cluster.state("orders-0")
    assert state is not None and state.eligible == (2,)
    assert receipts(cluster) == ()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, Policy(2, False)),
        ({"retention.ms": "5"}, Policy(2, False)),
        ({"min.insync.replicas": "3"}, Policy(3, False)),
        ({"unclean.leader.election.enable": "TRUE"}, Policy(2, True)),
        ({"min.insync.replicas": "many", "unclean.leader.election.enable": "?"}, Policy(2, False)),
    ],
)
def test_policies(overrides: dict[str, str], expected: Policy) -> None:
    assert policy_of(BrokerConfig(min_insync_replicas=2), overrides) == expected


async def test_an_elected_replica_that_cannot_lead_is_replaced(cluster: Cluster) -> None:
    """The elected replica's log is incomplete, because it is being copied from the start. Another
    live replica has more records."""
    await cluster.member(1)
    second, _, _ = await cluster.member(2), await cluster.member(3), await cluster.member(4)
    await until(lambda: "brokers 1,2,3,4" in cluster.lines(4))
    await cluster.create("orders", {0: (2, 3, 4)})
    await cluster.received(4, "metadata orders-0 leader=2 epoch=0")
    path = paths.partition_state(KEY)
    await cluster.write_json(path, {**cluster.json(path), "isr": [2]})
    cluster.yielding = {3: {KEY}}
    await second.kill()
    await cluster.received(4, "metadata orders-0 leader=-1 epoch=1")
    await cluster.set_options("orders", unclean_leader_election_enable="true")
    await cluster.received(4, "lead orders-0 leader=4 epoch=3 isr=4")
    assert [receipt.leader for receipt in receipts(cluster)] == [3, 4]
