"""Tests of live brokers with a failed log directory: other replicas lead the partitions in it."""

from __future__ import annotations

import pytest

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import LogDirEvent
from pybroker.model import PartitionState, TopicPartition
from unit_tests.coordinator.controller.cluster import Cluster
from unit_tests.patience import until

ORDERS_0 = TopicPartition("orders", 0)


async def lose_directory(cluster: Cluster, broker_id: int, *lost: TopicPartition) -> None:
    cluster.offline[broker_id] = set(lost)
    await notify(cluster, broker_id, LogDirEvent.DIRECTORY_FAILED)


async def notify(cluster: Cluster, broker_id: int, event: LogDirEvent) -> None:
    content = schemas.encode_log_dir_event(broker_id, event)
    await cluster.tool.create(paths.LOG_DIR_EVENT_PREFIX, content, sequence=True)


def notified(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.paths() if path.startswith(paths.LOG_DIR_EVENTS + "/")]


def notices(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.paths() if path.startswith(paths.ISR_CHANGES + "/")]


async def test_another_in_sync_replica_leads_after_a_failed_directory(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (1, 2)})
    await cluster.received(2, "metadata orders-1 leader=1 epoch=0")
    await lose_directory(cluster, 1, ORDERS_0)
    await cluster.received(2, "lead orders-0 leader=2 epoch=1 isr=2")
    await cluster.received(1, "metadata orders-0 leader=2 epoch=1")
    await until(lambda: not notified(cluster))
    assert not [line for line in cluster.lines(2) if line.startswith("lead orders-1 leader=2")]


async def test_without_another_replica_the_partition_is_leaderless_until_the_broker_returns(
    cluster: Cluster,
) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    await lose_directory(cluster, 1, ORDERS_0)
    await cluster.received(1, "metadata orders-0 leader=-1 epoch=1")
    cluster.offline.clear()
    await cluster.received(1, "metadata orders-0 leader=1 epoch=2")


async def test_a_restarted_broker_gets_its_refused_roles_again(cluster: Cluster) -> None:
    first = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    await lose_directory(cluster, 1, ORDERS_0)
    await cluster.received(1, "metadata orders-0 leader=-1 epoch=1")
    await first.kill()
    cluster.offline.clear()
    await cluster.member(1)
    await cluster.received(1, "lead orders-0 leader=1 epoch=2 isr=1")


async def test_a_replica_refused_without_a_notification_is_asked_again(
    cluster: Cluster,
) -> None:
    cluster.offline[1] = {ORDERS_0}
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    for _ in range(50):
        await until(lambda: True)
    assert not [line for line in cluster.lines(1) if "leader=-1" in line]


async def test_a_replica_that_refuses_to_lead_is_replaced_by_another(cluster: Cluster) -> None:
    """The replica's log has a gap, or is only partly copied after the loss of its disk. No
    directory failed."""
    cluster.offline[1] = {ORDERS_0}
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (1, 2)})
    await cluster.received(2, "lead orders-0 leader=2 epoch=1 isr=2")
    cluster.offline.clear()
    await cluster.received(1, "lead orders-0 leader=2 epoch=1 isr=2 new")
    assert not [line for line in cluster.lines(2) if line.startswith("lead orders-1 leader=2")]


async def test_a_leader_that_yields_is_replaced(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (1, 2)})
    await cluster.received(2, "metadata orders-1 leader=1 epoch=0")
    cluster.offline[1] = {ORDERS_0}
    await notify(cluster, 1, LogDirEvent.REPLICAS_CHANGED)
    await cluster.received(2, "lead orders-0 leader=2 epoch=1 isr=2")
    await until(lambda: not notified(cluster))
    assert not [line for line in cluster.lines(2) if line.startswith("lead orders-1 leader=2")]


async def test_a_leader_that_yields_stays_if_no_other_replica_can_lead(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
    cluster.offline[1] = {ORDERS_0}
    told = cluster.lines(1).count("lead orders-0 leader=1 epoch=0 isr=1")
    await notify(cluster, 1, LogDirEvent.REPLICAS_CHANGED)
    await until(lambda: cluster.lines(1).count("lead orders-0 leader=1 epoch=0 isr=1") > told + 1)
    assert not [line for line in cluster.lines(1) if "leader=-1" in line]


async def test_the_last_replica_still_leads_if_all_replicas_yield(cluster: Cluster) -> None:
    """Two replicas yield. The third replica also yields, but leads until one of the other two
    accepts again."""
    for broker in (1, 2, 3):
        await cluster.member(broker)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (1, 2, 3)})
    await cluster.received(3, "metadata orders-0 leader=1 epoch=0")
    cluster.yielding = {broker: {ORDERS_0} for broker in (1, 2, 3)}
    await notify(cluster, 1, LogDirEvent.REPLICAS_CHANGED)
    await cluster.received(3, "lead orders-0 leader=3 epoch=2 isr=3")
    # No records were written meanwhile, so the other two replicas are in sync again.
    path = paths.partition_state(ORDERS_0)
    await cluster.write_json(path, {**cluster.json(path), "isr": [3, 1, 2]})
    notice = schemas.encode_partitions([ORDERS_0])
    await cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
    asked = len(cluster.lines(3))
    again = "lead orders-0 leader=3 epoch=2 isr="
    await until(lambda: sum(line.startswith(again) for line in cluster.lines(3)[asked:]) > 5)
    cluster.yielding[2].clear()
    await notify(cluster, 2, LogDirEvent.REPLICAS_CHANGED)
    await cluster.received(2, "lead orders-0 leader=2 epoch=3 isr=1,2")


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("replica", [1, 2])
async def test_a_replica_that_left_the_isr_by_itself_is_not_elected(
    cluster: Cluster, replica: int, is_known: bool
) -> None:
    """The replica's log has a gap. The broker removed it from the ISR before it notified the
    controller."""
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.received(2, "metadata orders-0 leader=1 epoch=0")
    was_led = replica == 1
    state = PartitionState(-1 if was_led else 1, 1 if was_led else 0, (3 - replica,), 1)
    await cluster.tool.set(paths.partition_state(ORDERS_0), schemas.encode_state(state))
    if is_known:  # the controller has already read the state, after a notice of the leader
        notice = schemas.encode_partitions([ORDERS_0])
        await cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
        await until(lambda: not notices(cluster))
    await notify(cluster, replica, LogDirEvent.REPLICAS_CHANGED)
    if was_led:
        await cluster.received(2, "lead orders-0 leader=2 epoch=2 isr=2")
        await cluster.received(1, "lead orders-0 leader=2 epoch=2 isr=2")
    else:
        await cluster.received(1, "lead orders-0 leader=1 epoch=0 isr=1")
        await cluster.received(2, "lead orders-0 leader=1 epoch=0 isr=1")


async def test_malformed_notifications_are_removed(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.tool.create(paths.LOG_DIR_EVENT_PREFIX, b"no json", sequence=True)
    await lose_directory(cluster, 77)
    await until(lambda: not notified(cluster))
    await cluster.create("orders", {0: (1,)})
    await cluster.received(1, "metadata orders-0 leader=1 epoch=0")
