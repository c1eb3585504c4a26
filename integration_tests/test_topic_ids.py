"""Tests of topics of the previous version of pybroker, which counted removals and had no nodes of
topic ids: they are used, changed, deleted and recreated without action by the operator.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import kazoo.client  # type: ignore[import-untyped]
import pytest

from pybroker.client import Admin, NewTopic, Producer
from pybroker.client.admin.configs import ConfigChange, ConfigResource
from pybroker.testing.cluster import Cluster
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

TOPIC_IDS = "/pybroker/topic_ids"
OLD_COUNTER = "/pybroker/removals"
TOPIC = "/brokers/topics/orders"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as started:
        yield started


@pytest.fixture
def zookeeper(cluster: Cluster) -> Iterator[kazoo.client.KazooClient]:
    client = kazoo.client.KazooClient(cluster.zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


def create(cluster: Cluster, *replicas: int) -> None:
    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin:
            (made,) = await admin.create_topics([NewTopic("orders", assignments={0: replicas})])
            made.check()

    asyncio.run(work())
    cluster.wait_until_in_sync("orders")


def produce(cluster: Cluster) -> int:
    """Produce a record. Return its offset."""

    async def work() -> int:
        async with Producer(cluster.bootstrap, acks="all") as producer:
            return (await (await producer.send("orders", b"value"))).offset

    return asyncio.run(work())


def alter_retention(cluster: Cluster) -> None:
    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin:
            resource = ConfigResource.topic("orders")
            changes = {resource: [ConfigChange("retention.ms", "1000000")]}
            (await admin.alter_configs(changes))[resource].check()

    asyncio.run(work())


def delete(cluster: Cluster) -> None:
    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin:
            (gone,) = await admin.delete_topics(["orders"])
            gone.check()

    asyncio.run(work())


def stored_id(zookeeper: kazoo.client.KazooClient) -> str:
    content, _ = zookeeper.get(TOPIC)
    return str(json.loads(content)["topic_id"])


def test_a_topic_without_a_node_of_its_id_changes_its_isr_until_a_controller_makes_one(
    cluster: Cluster, zookeeper: kazoo.client.KazooClient
) -> None:
    """This happens during a rolling upgrade in which the controller is upgraded last."""
    controller = cluster.controller()
    leader, follower = sorted({1, 2, 3} - {controller})
    create(cluster, leader, follower)
    zookeeper.delete(f"{TOPIC_IDS}/{stored_id(zookeeper)}")
    cluster.kill(follower)
    wait_until(lambda: isr(cluster) == {leader}, what="the follower has left")
    cluster.restart(follower)
    cluster.wait_until_in_sync("orders")
    assert zookeeper.get_children(TOPIC_IDS) == []
    cluster.kill(controller)
    cluster.controller(other_than=controller)
    wait_until(
        lambda: zookeeper.get_children(TOPIC_IDS) == [stored_id(zookeeper)],
        what="the next controller has made the node",
    )
    assert produce(cluster) == 0


def isr(cluster: Cluster) -> set[int]:
    state = cluster.partition("orders", 0)
    return set() if state is None else {*state.isr}


def test_topics_of_an_earlier_version_are_changed_deleted_and_recreated(
    cluster: Cluster, zookeeper: kazoo.client.KazooClient
) -> None:
    create(cluster, 1, 2, 3)
    assert produce(cluster) == 0
    earlier = stored_id(zookeeper)
    for broker in cluster.ids:
        cluster.terminate(broker)
    zookeeper.delete(TOPIC_IDS, recursive=True)
    zookeeper.create(OLD_COUNTER)
    for _ in range(3):
        zookeeper.set(OLD_COUNTER, b"")
    cluster.start()
    cluster.wait_until_in_sync("orders")
    assert zookeeper.get_children(TOPIC_IDS) == [earlier]
    assert produce(cluster) == 1
    alter_retention(cluster)
    content, _ = zookeeper.get("/config/topics/orders")
    assert json.loads(content)["config"] == {"retention.ms": "1000000"}
    delete(cluster)
    wait_until(lambda: zookeeper.exists(TOPIC) is None, what="the topic is gone")
    assert zookeeper.get_children(TOPIC_IDS) == []
    create(cluster, 1, 2, 3)
    assert zookeeper.get_children(TOPIC_IDS) == [stored_id(zookeeper)] != [earlier]
    assert produce(cluster) == 0
    assert zookeeper.exists(OLD_COUNTER).version == 3, "the old counter has changed"
