"""Tests of brokers that start, end and restart, and commands that they refuse."""

from __future__ import annotations

import pytest

from pybroker.coordinator.controller.events import ElectionType, Retry
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ErrorCode
from pybroker.model import Endpoint, UpdateMetadata
from unit_tests.coordinator.controller.cluster import Cluster, key, refused
from unit_tests.patience import until

ORDERS = "/brokers/topics/orders"


async def test_a_restarted_broker_leads_again_with_the_next_leader_epoch(cluster: Cluster) -> None:
    member = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    await member.kill()
    cluster.notes.clear()
    restarted = await cluster.member(1)
    await cluster.received(1, "metadata orders-0 leader=1 epoch=1")
    assert restarted.controller.epoch == 2
    assert cluster.lines(1) == [
        "brokers 1",
        "lead orders-0 leader=1 epoch=1 isr=1",
        "brokers 1",
        "metadata orders-0 leader=1 epoch=1",
    ]


async def test_a_new_controller_does_not_replace_a_live_leader(cluster: Cluster) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1)})
    await cluster.received(2, "metadata orders-0 leader=2 epoch=0")
    await first.controller.stop()
    await until(lambda: second.controller.is_active)
    await until(lambda: cluster.lines(2).count("lead orders-0 leader=2 epoch=0 isr=2,1") == 1)
    assert cluster.stored_epoch("orders-0") == 0


async def test_all_brokers_get_the_new_endpoints_of_a_broker(cluster: Cluster) -> None:
    """The controller holds no election, and connects to the broker's new endpoint."""
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1)})
    await cluster.received(1, "metadata orders-0 leader=2 epoch=0")
    cluster.notes.clear()
    path = paths.broker(2)
    found = await cluster.tool.get(path)
    moved = (Endpoint("PLAINTEXT", "elsewhere", 9999),)
    await cluster.tool.set(path, schemas.encode_broker(moved, None, 0))
    await until(lambda: received_endpoints(cluster, 1, of=2) == moved)
    await until(lambda: received_endpoints(cluster, 2, of=2) == moved)
    assert found[1].czxid == (await cluster.tool.get(path))[1].czxid
    assert cluster.stored_epoch("orders-0") == 0
    assert not [line for line in cluster.lines(1) + cluster.lines(2) if line.startswith("lead")]
    assert first.controller.is_active and not second.controller.is_active
    assert cluster.reached[2].endpoints == moved
    await cluster.create("later", {0: (2,)})
    await cluster.received(2, "lead later-0 leader=2 epoch=0 isr=2 new")


def received_endpoints(cluster: Cluster, broker_id: int, of: int) -> tuple[Endpoint, ...] | None:
    """Return the endpoints of another broker that this broker last got."""
    lists = [
        note.command.brokers
        for note in cluster.notes
        if note.broker_id == broker_id and isinstance(note.command, UpdateMetadata)
    ]
    return {each.id: each.endpoints for each in lists[-1]}.get(of) if lists else None


async def test_another_replica_leads_when_the_leader_dies(cluster: Cluster) -> None:
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1), 1: (1, 2), 2: (2,)})
    await cluster.received(2, "metadata orders-2 leader=2 epoch=0")
    await second.kill()
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1")
    await cluster.received(1, "lead orders-1 leader=1 epoch=1 isr=1")
    await cluster.received(1, "metadata orders-2 leader=-1 epoch=1")
    alone = cluster.state("orders-2")
    assert alone is not None
    assert (alone.leader, alone.isr) == (-1, (2,))
    await cluster.member(2)
    await cluster.received(2, "lead orders-2 leader=2 epoch=2 isr=2")
    await cluster.received(2, "lead orders-0 leader=1 epoch=1 isr=1")


async def test_an_isr_that_the_leader_has_just_written_is_respected(cluster: Cluster) -> None:
    """The controller's context has an older ISR when the leader dies."""
    await cluster.member(1)
    second, _ = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 1, 3), 1: (2, 1, 3)})
    await cluster.received(3, "metadata orders-1 leader=2 epoch=0")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "isr": [2, 3]})
    await second.kill()
    await cluster.received(1, "lead orders-0 leader=3 epoch=1 isr=3")
    await cluster.received(1, "lead orders-1 leader=1 epoch=1 isr=1,3")


async def test_a_broker_that_dies_just_after_it_joined_the_isr_is_removed(
    cluster: Cluster,
) -> None:
    """The controller's context does not yet have the broker in the ISR. The leader would wait for
    the broker until replica.lag.time.max.ms."""
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.received(2, "metadata orders-0 leader=1 epoch=0")
    await second.kill()
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1")
    back = await cluster.member(2)
    await cluster.received(2, "lead orders-0 leader=1 epoch=1 isr=1")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "isr": [1, 2]})
    await back.kill()
    await cluster.received(1, "lead orders-0 leader=1 epoch=2 isr=1")


async def test_a_leader_gets_the_isr_that_a_follower_left_just_after_joining(
    cluster: Cluster,
) -> None:
    """A power loss has cut the follower's log. The controller has read neither change, and the
    leader has not read the second: it would count the follower as in sync and never add it to the
    ISR again."""
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.received(2, "metadata orders-0 leader=1 epoch=0")
    await second.kill()
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1")
    back = await cluster.member(2)
    await cluster.received(2, "lead orders-0 leader=1 epoch=1 isr=1")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "isr": [1, 2]})
    await cluster.write_json(path, {**cluster.json(path), "isr": [1]})
    cluster.notes.clear()
    await cluster.tool.delete(paths.broker(2))
    await back.register()
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1")


async def test_a_state_of_a_newer_controller_deposes(cluster: Cluster) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1)})
    await cluster.received(2, "metadata orders-0 leader=2 epoch=0")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "controller_epoch": 99})
    await second.kill()
    await until(lambda: not first.controller.is_active)


async def test_a_bounced_broker_was_lost_and_has_started(cluster: Cluster) -> None:
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1), 1: (2,)})
    await cluster.received(2, "metadata orders-1 leader=2 epoch=0")
    cluster.notes.clear()
    await cluster.tool.delete(paths.broker(2))
    await second.register()
    await cluster.received(2, "lead orders-1 leader=2 epoch=1 isr=2")
    await cluster.received(2, "lead orders-0 leader=1 epoch=1 isr=1")
    assert not [line for line in cluster.lines(2) if line.startswith("lead") and "epoch=0" in line]


async def test_a_bounced_follower_leaves_the_isr_before_it_gets_its_role(
    cluster: Cluster,
) -> None:
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.received(2, "metadata orders-0 leader=1 epoch=0")
    cluster.notes.clear()
    await cluster.tool.delete(paths.broker(2))
    await second.register()
    await cluster.received(2, "metadata orders-0 leader=1 epoch=1")
    assert [line for line in cluster.lines(2) if line.startswith("lead")] == [
        "lead orders-0 leader=1 epoch=1 isr=1"
    ]


async def test_a_new_controller_notices_that_a_follower_was_restarted_meanwhile(
    cluster: Cluster,
) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.received(2, "metadata orders-0 leader=1 epoch=0")
    first.coord.suspend()
    await cluster.tool.delete(paths.broker(2))
    await second.register()
    await cluster.tool.delete(paths.CONTROLLER)
    await until(lambda: second.controller.is_active)
    first.coord.resume()
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1")


async def test_a_restarted_follower_leaves_the_isr_although_its_leader_wrote_in_between(
    cluster: Cluster,
) -> None:
    """The leader removed another follower from the ISR while the controller was deciding."""
    await cluster.member(1)
    second, _ = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (1, 2, 3)})
    await cluster.received(3, "metadata orders-0 leader=1 epoch=0")
    await cluster.tool.delete(paths.broker(2))
    await second.register()
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "isr": [1, 2]})
    await cluster.received(1, "lead orders-0 leader=1 epoch=1 isr=1")


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("position", range(12))
async def test_a_bounce_survives_any_lost_reply(
    cluster: Cluster, position: int, applied: bool
) -> None:
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (2, 1), 1: (2,)})
    await cluster.received(2, "metadata orders-1 leader=2 epoch=0")
    first.lose_request(position, applied=applied)
    await cluster.tool.delete(paths.broker(2))
    await second.register()
    await until(
        lambda: any(
            line.startswith(("lead orders-1 leader=2 epoch=1", "lead orders-1 leader=2 epoch=2"))
            for line in cluster.lines(2)
        )
    )
    assert first.controller.epoch == 1


@pytest.mark.parametrize(
    "refusal",
    [ConnectionError("gone"), TimeoutError(), refused(ErrorCode.REQUEST_TIMED_OUT), ValueError()],
)
async def test_a_command_that_fails_is_sent_again(cluster: Cluster, refusal: Exception) -> None:
    await cluster.member(1)
    await cluster.received(1, "brokers 1")
    cluster.refusals.extend([refusal] * 3)
    await cluster.create("orders", {0: (1,), 1: (1,)})
    await cluster.received(1, "metadata orders-1 leader=1 epoch=0")
    assert "lead orders-1 leader=1 epoch=0 isr=1 new" in cluster.lines(1)


async def test_a_partition_that_fails_is_sent_again(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.received(1, "brokers 1")
    cluster.refusals.append(ErrorCode.KAFKA_STORAGE_ERROR)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "lead orders-0 leader=1 epoch=0 isr=1 new")
    assert not cluster.refusals


async def test_a_leader_gets_the_isr_that_a_follower_left_by_itself(
    cluster: Cluster,
) -> None:
    """After a power loss a broker leaves the ISR by itself before it registers. The leader would
    keep its old ISR and never add the follower to the ISR again."""
    await cluster.member(1)
    _, third = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 3)})
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "isr": [2]})
    await cluster.tool.delete(paths.broker(3))
    await third.register()
    await cluster.received(2, "lead orders-0 leader=2 epoch=0 isr=2")
    await cluster.received(3, "lead orders-0 leader=2 epoch=0 isr=2")


async def test_a_restarted_replica_leaves_the_isr_also_after_another_election(
    cluster: Cluster,
) -> None:
    """The first attempt to remove it fails, and an election is requested meanwhile."""
    first = await cluster.member(1)
    second, _ = await cluster.member(2), await cluster.member(3)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (2, 3, 1)})
    await cluster.received(3, "metadata orders-0 leader=2 epoch=0")
    await second.kill()
    await cluster.received(3, "lead orders-0 leader=3 epoch=1 isr=3,1")
    await cluster.member(2)
    await cluster.received(2, "lead orders-0 leader=3 epoch=1 isr=3,1")
    path = f"{ORDERS}/partitions/0/state"
    await cluster.write_json(path, {**cluster.json(path), "isr": [3, 1, 2]})
    term = first.controller._term
    assert term is not None
    term.context.stale[key("orders-0")] = frozenset({1})
    await first.controller.elect_leaders(ElectionType.PREFERRED, [key("orders-0")])
    await cluster.received(2, "lead orders-0 leader=2 epoch=2 isr=3,1,2")
    term._services.retries.partitions.add(key("orders-0"))
    first.controller._enqueue(Retry())
    await cluster.received(2, "lead orders-0 leader=2 epoch=3 isr=3,2")


async def test_the_times_of_elections_are_taken(cluster: Cluster) -> None:
    """The controller measures each change of the live brokers and no other event."""
    await cluster.member(1)
    second = await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    before = cluster.elections.count
    await cluster.create("orders", {0: (2, 1)})
    await cluster.received(1, "metadata orders-0 leader=2 epoch=0")
    assert cluster.elections.count == before
    await second.kill()
    await cluster.received(1, "metadata orders-0 leader=1 epoch=1")
    assert cluster.elections.count == before + 1
