"""Brokers that lose a log directory and live on: others lead what they cannot open."""

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
    await tell(cluster, broker_id, LogDirEvent.DIRECTORY_FAILED)


async def tell(cluster: Cluster, broker_id: int, event: LogDirEvent) -> None:
    content = schemas.encode_log_dir_event(broker_id, event)
    await cluster.tool.create(paths.LOG_DIR_EVENT_PREFIX, content, sequence=True)


def notified(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.paths() if path.startswith(paths.LOG_DIR_EVENTS + "/")]


def notices(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.paths() if path.startswith(paths.ISR_CHANGES + "/")]


async def test_another_replica_in_sync_takes_over(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (1, 2)})
    await cluster.told(2, "metadata orders-1 leader=1 epoch=0")
    await lose_directory(cluster, 1, ORDERS_0)
    await cluster.told(2, "lead orders-0 leader=2 epoch=1 isr=2")
    await cluster.told(1, "metadata orders-0 leader=2 epoch=1")
    await until(lambda: not notified(cluster))
    assert not [line for line in cluster.lines(2) if line.startswith("lead orders-1 leader=2")]


async def test_without_another_replica_there_is_no_leader_until_it_is_back(
    cluster: Cluster,
) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    await lose_directory(cluster, 1, ORDERS_0)
    await cluster.told(1, "metadata orders-0 leader=-1 epoch=1")
    cluster.offline.clear()
    await cluster.told(1, "metadata orders-0 leader=1 epoch=2")


async def test_a_broker_that_starts_anew_is_asked_anew(cluster: Cluster) -> None:
    first = await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    await lose_directory(cluster, 1, ORDERS_0)
    await cluster.told(1, "metadata orders-0 leader=-1 epoch=1")
    await first.kill()
    cluster.offline.clear()
    await cluster.member(1)
    await cluster.told(1, "lead orders-0 leader=1 epoch=2 isr=1")


async def test_what_is_refused_without_a_notification_is_tried_where_it_is(
    cluster: Cluster,
) -> None:
    cluster.offline[1] = {ORDERS_0}
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    for _ in range(50):
        await until(lambda: True)
    assert not [line for line in cluster.lines(1) if "leader=-1" in line]


async def test_who_refuses_to_lead_is_replaced_by_who_can(cluster: Cluster) -> None:
    """Its log has a hole, or is only half copied since its disk was lost; no directory failed."""
    cluster.offline[1] = {ORDERS_0}
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (1, 2)})
    await cluster.told(2, "lead orders-0 leader=2 epoch=1 isr=2")
    cluster.offline.clear()
    await cluster.told(1, "lead orders-0 leader=2 epoch=1 isr=2 new")
    assert not [line for line in cluster.lines(2) if line.startswith("lead orders-1 leader=2")]


async def test_who_would_rather_not_lead_is_replaced_while_it_leads(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (1, 2)})
    await cluster.told(2, "metadata orders-1 leader=1 epoch=0")
    cluster.offline[1] = {ORDERS_0}
    await tell(cluster, 1, LogDirEvent.REPLICAS_CHANGED)
    await cluster.told(2, "lead orders-0 leader=2 epoch=1 isr=2")
    await until(lambda: not notified(cluster))
    assert not [line for line in cluster.lines(2) if line.startswith("lead orders-1 leader=2")]


async def test_who_would_rather_not_lead_goes_on_where_nobody_else_can(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
    cluster.offline[1] = {ORDERS_0}
    told = cluster.lines(1).count("lead orders-0 leader=1 epoch=0 isr=1")
    await tell(cluster, 1, LogDirEvent.REPLICAS_CHANGED)
    await until(lambda: cluster.lines(1).count("lead orders-0 leader=1 epoch=0 isr=1") > told + 1)
    assert not [line for line in cluster.lines(1) if "leader=-1" in line]


async def test_where_all_would_rather_not_lead_leaders_come_to_rest(cluster: Cluster) -> None:
    """Two hand over to the last one, which leads on until one of them is willing again."""
    for broker in (1, 2, 3):
        await cluster.member(broker)
    await until(lambda: "brokers 1,2,3" in cluster.lines(3))
    await cluster.create("orders", {0: (1, 2, 3)})
    await cluster.told(3, "metadata orders-0 leader=1 epoch=0")
    cluster.yielding = {broker: {ORDERS_0} for broker in (1, 2, 3)}
    await tell(cluster, 1, LogDirEvent.REPLICAS_CHANGED)
    await cluster.told(3, "lead orders-0 leader=3 epoch=2 isr=3")
    # Nothing is written, so that they have everything, and are in sync again.
    path = paths.partition_state(ORDERS_0)
    await cluster.write_json(path, {**cluster.json(path), "isr": [3, 1, 2]})
    notice = schemas.encode_partitions([ORDERS_0])
    await cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
    asked = len(cluster.lines(3))
    again = "lead orders-0 leader=3 epoch=2 isr="
    await until(lambda: sum(line.startswith(again) for line in cluster.lines(3)[asked:]) > 5)
    cluster.yielding[2].clear()
    await tell(cluster, 2, LogDirEvent.REPLICAS_CHANGED)
    await cluster.told(2, "lead orders-0 leader=2 epoch=3 isr=1,2")


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("replica", [1, 2])
async def test_who_has_stepped_aside_by_itself_is_done_without(
    cluster: Cluster, replica: int, is_known: bool
) -> None:
    """Its log has a hole: it left the in-sync replicas before it told anybody."""
    await cluster.member(1)
    await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2)})
    await cluster.told(2, "metadata orders-0 leader=1 epoch=0")
    was_led = replica == 1
    state = PartitionState(-1 if was_led else 1, 1 if was_led else 0, (3 - replica,), 1)
    await cluster.tool.set(paths.partition_state(ORDERS_0), schemas.encode_state(state))
    if is_known:  # a leader's notice has made the controller read the state
        notice = schemas.encode_partitions([ORDERS_0])
        await cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
        await until(lambda: not notices(cluster))
    await tell(cluster, replica, LogDirEvent.REPLICAS_CHANGED)
    if was_led:
        await cluster.told(2, "lead orders-0 leader=2 epoch=2 isr=2")
        await cluster.told(1, "lead orders-0 leader=2 epoch=2 isr=2")
    else:
        await cluster.told(1, "lead orders-0 leader=1 epoch=0 isr=1")
        await cluster.told(2, "lead orders-0 leader=1 epoch=0 isr=1")


async def test_strange_notifications_go_without_harm(cluster: Cluster) -> None:
    await cluster.member(1)
    await cluster.tool.create(paths.LOG_DIR_EVENT_PREFIX, b"no json", sequence=True)
    await lose_directory(cluster, 77)
    await until(lambda: not notified(cluster))
    await cluster.create("orders", {0: (1,)})
    await cluster.told(1, "metadata orders-0 leader=1 epoch=0")
