"""Test of a cluster whose machines all lose power at once: with flush.messages=1 no acknowledged
record is lost, and no replica leads before all replicas have reported their log ends.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from integration_tests.apache import session_at
from integration_tests.faults import machines
from integration_tests.faults.machines import Machine
from pybroker.client import Admin, Consumer, NewTopic, Producer
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.loss_receipts import POWER_LOSS, decode_receipts
from pybroker.model import TopicPartition
from pybroker.testing.cluster import Cluster

pytestmark = pytest.mark.ours

TOPIC: Final = "paid"
KEY: Final = TopicPartition(TOPIC, 0)
RECORDS: Final = 50


async def pay(bootstrap: str) -> list[bytes]:
    """Write records with acks=all, which each replica acknowledges after a sync."""
    values = [b"%d" % number for number in range(RECORDS)]
    async with Admin(bootstrap) as admin:
        configs = {"flush.messages": "1", "min.insync.replicas": "2"}
        await admin.create_topics([NewTopic(TOPIC, 1, 3, configs=configs)])
    async with Producer(bootstrap, acks="all") as producer:
        for value in values:
            await (await producer.send(TOPIC, value))
    return values


async def read(bootstrap: str) -> list[bytes | None]:
    """Read the topic from its beginning."""
    async with Consumer(bootstrap) as consumer:
        consumer.assign([KEY])
        consumer.seek_to_beginning(KEY)
        end = (await consumer.end_offsets([KEY]))[KEY]
        return [(await consumer.getone()).value for _ in range(end)]


def test_all_machines_lose_power_at_once(tmp_path: Path) -> None:
    reason = machines.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    each = {broker: Machine(tmp_path / "machines", broker) for broker in (1, 2, 3)}
    places = {broker: machine.place for broker, machine in each.items()}
    with Cluster(3, data=tmp_path / "data", places=places) as cluster:
        values = asyncio.run(pay(cluster.bootstrap))
        for broker in cluster.ids:
            cluster.kill(broker)
        for machine in each.values():
            machine.boot()
        for broker in (1, 2):
            cluster.restart(broker)
        state = cluster.partition(TOPIC, 0)
        assert state is not None
        assert {1, 2}.isdisjoint({state.leader, *state.isr, *state.eligible}), state
        cluster.restart(3)
        cluster.wait_until_in_sync(TOPIC)
        state = cluster.partition(TOPIC, 0)
        assert state is not None and sorted(state.isr) == [1, 2, 3]
        assert asyncio.run(read(cluster.bootstrap)) == values
        with session_at(cluster.zookeeper) as session:
            path = paths.loss(KEY)
            (receipt,) = decode_receipts(path, session.get(path)[0])
        assert receipt.reason == POWER_LOSS
