"""Tests of controlled shutdown: a broker hands over the partitions that it leads before it
stops."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.coordinator.controller.controlled_shutdown import decide_handover
from pybroker.coordinator.controller.decisions import Circumstances
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import NO_LEADER, PartitionState
from unit_tests.coordinator.controller.cluster import Cluster, Member, key
from unit_tests.patience import until

STATE = "/brokers/topics/orders/partitions/{}/state"


@pytest.mark.parametrize(
    ("leader", "isr", "leaving", "candidates", "expected"),
    [
        (1, (1, 2, 3), {1}, (2, 3), (2, (2, 3))),
        (1, (3, 1, 2), {1}, (2, 3), (2, (3, 2))),
        (1, (1, 3), {1}, (2, 3), (3, (3,))),
        (1, (1, 2, 3), {1, 2}, (3,), (3, (3,))),
        (1, (1, 2), {1, 2}, (3,), None),
        (1, (1,), {1}, (2, 3), None),
        (1, (1, 2), {1}, (3,), None),
        (2, (1, 2, 3), {1}, (2, 3), (2, (2, 3))),
        (2, (2, 3), {1}, (2, 3), None),
        (-1, (1,), {1}, (2, 3), None),
    ],
)
def test_another_replica_leads_without_the_leaving_brokers(
    leader: int,
    isr: tuple[int, ...],
    leaving: set[int],
    candidates: tuple[int, ...],
    expected: tuple[int, tuple[int, ...]] | None,
) -> None:
    state = PartitionState(leader, 4, isr, controller_epoch=1)
    status = PartitionStatus.OFFLINE if leader == NO_LEADER else PartitionStatus.ONLINE
    partition = Partition(key("orders-0"), (1, 2, 3), status, state, 8)
    now = Circumstances((1, 2, 3), candidates, 7, required=2)
    write = decide_handover(partition, leaving, now)
    found = None if write is None else (write.state.leader, write.state.isr)
    assert found == expected
    if write is not None:
        assert (write.state.leader_epoch, write.state.controller_epoch) == (5, 7)
        assert write.expected_version == 8
        missing = {*isr} - {*write.state.isr}
        assert set(write.state.eligible) == (missing if len(write.state.isr) < 2 else set())


async def three(cluster: Cluster) -> list[Member]:
    """Start brokers 1 (the controller), 2 and 3."""
    members = [await cluster.member(number) for number in (1, 2, 3)]
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    return members


def epoch_of(member: Member) -> int:
    node = member.cluster.tree.node(f"/brokers/ids/{member.id}")
    assert node is not None
    return node[1].czxid


async def test_a_broker_hands_over_the_partitions_that_it_leads(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    await cluster.create("orders", {0: (2, 1, 3), 1: (1, 2), 2: (2,), 3: (1, 3)})
    await cluster.received(3, "metadata orders-3 leader=1 epoch=0")
    cluster.notes.clear()
    remaining = await first.controller.controlled_shutdown(2, epoch_of(second))
    assert remaining == ()
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1,3")
    await cluster.received(3, "lead orders-0 leader=1 epoch=1 isr=1,3")
    await cluster.received(2, "lead orders-0 leader=1 epoch=1 isr=1,3")
    await cluster.received(1, "lead orders-1 leader=1 epoch=1 isr=1")
    await cluster.received(2, "stop orders-1 epoch=1")
    await cluster.received(2, "metadata orders-0 leader=1 epoch=1")
    assert not any(line.startswith("lead orders-2") for line in cluster.lines())
    assert cluster.stored_epoch("orders-2") == 0
    assert cluster.stored_epoch("orders-3") == 0


async def test_one_round_of_writes_and_one_command_for_many_partitions(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    count = 450
    await cluster.create("orders", dict.fromkeys(range(count), (2, 1, 3)))
    await cluster.received(3, f"metadata orders-{count - 1} leader=2 epoch=0")
    before = cluster.tree.zxid
    cluster.notes.clear()
    await first.controller.controlled_shutdown(2, epoch_of(second))
    assert cluster.tree.zxid - before == 3
    await cluster.received(3, f"lead orders-{count - 1} leader=1 epoch=1 isr=1,3")
    assert next(len(note.lines) for note in cluster.notes if note.broker_id == 3) == count


async def test_a_partition_that_no_other_replica_can_lead_stays_and_is_reported(
    cluster: Cluster,
) -> None:
    first, second, _ = await three(cluster)
    await cluster.create("orders", {0: (2, 1), 1: (2, 3)})
    await cluster.received(2, "metadata orders-1 leader=2 epoch=0")
    path = STATE.format(0)
    await cluster.write_json(path, {**cluster.json(path), "isr": [2]})
    shutdown = first.controller.controlled_shutdown
    assert await shutdown(2, -1) == (key("orders-0"),)
    state = cluster.state("orders-0")
    assert state is not None
    assert (state.leader, state.isr) == (2, (2,))
    await cluster.write_json(path, {**cluster.json(path), "isr": [2, 1]})
    assert await shutdown(2, epoch_of(second)) == ()
    assert cluster.state("orders-0") == PartitionState(1, 1, (1,), controller_epoch=1)


async def test_a_leaving_broker_is_not_elected(cluster: Cluster) -> None:
    first, _, third = await three(cluster)
    await cluster.create("orders", {0: (3, 2, 1)})
    await cluster.received(1, "metadata orders-0 leader=3 epoch=0")
    await first.controller.controlled_shutdown(2, -1)
    path = STATE.format(0)
    await cluster.write_json(path, {**cluster.json(path), "isr": [3, 2, 1]})
    await cluster.create("later", {0: (2, 1)})
    await cluster.received(1, "lead later-0 leader=1 epoch=0 isr=1 new")
    await third.kill()
    await cluster.received(1, "lead orders-0 leader=1 epoch=2 isr=1")
    assert not any("later" in line for line in cluster.lines(2) if line.startswith("lead"))


async def test_all_brokers_may_shut_down(cluster: Cluster) -> None:
    first, _, _ = await three(cluster)
    await cluster.create("orders", {0: (2, 1, 3)})
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    shutdown = first.controller.controlled_shutdown
    assert await shutdown(2, -1) == ()
    assert await shutdown(3, -1) == ()
    assert await shutdown(1, -1) == (key("orders-0"),)
    state = cluster.state("orders-0")
    assert state is not None
    assert (state.leader, state.isr) == (1, (1,))


async def test_a_broker_that_returns_may_lead_again(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    await cluster.create("orders", {0: (2, 1)})
    await cluster.received(2, "metadata orders-0 leader=2 epoch=0")
    await first.controller.controlled_shutdown(2, -1)
    await second.kill()
    await until(lambda: "brokers 1,3" in cluster.lines(1))
    cluster.notes.clear()
    await cluster.member(2)
    await cluster.received(2, "lead orders-0 leader=1 epoch=1 isr=1")
    await cluster.create("later", {0: (2, 1)})
    await cluster.received(2, "lead later-0 leader=2 epoch=0 isr=2,1 new")


async def test_a_shutdown_of_an_unknown_or_stale_broker_is_refused(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    for controller, broker, epoch, code in (
        (second.controller, 2, -1, ErrorCode.NOT_CONTROLLER),
        (first.controller, 7, -1, ErrorCode.BROKER_NOT_AVAILABLE),
        (first.controller, 2, epoch_of(second) - 1, ErrorCode.STALE_BROKER_EPOCH),
    ):
        with pytest.raises(BrokerError) as refused:
            await controller.controlled_shutdown(broker, epoch)
        assert refused.value.code is code
    await cluster.create("orders", {0: (2, 1)})
    await cluster.received(2, "lead orders-0 leader=2 epoch=0 isr=2,1 new")


async def test_a_broker_that_has_just_registered_is_known(cluster: Cluster) -> None:
    """Its request may arrive before the controller has handled the watch."""
    first = await cluster.member(1)
    joining = asyncio.ensure_future(cluster.member(2))
    await until(lambda: cluster.exists("/brokers/ids/2"))
    assert await first.controller.controlled_shutdown(2, -1) == ()
    await joining


async def test_the_controller_hands_over_its_own_partitions(cluster: Cluster) -> None:
    first, _, _ = await three(cluster)
    await cluster.create("orders", {0: (1, 2, 3)})
    await cluster.received(3, "metadata orders-0 leader=1 epoch=0")
    assert await first.controller.controlled_shutdown(1, epoch_of(first)) == ()
    await cluster.received(2, "lead orders-0 leader=2 epoch=1 isr=2,3")
