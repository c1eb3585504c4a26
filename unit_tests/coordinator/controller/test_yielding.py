"""Tests that the controller yields to other tasks of its process, and a slow broker does not
delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ErrorCode
from pybroker.model import (
    Broker,
    LeaderAndIsr,
    StopReplica,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.ports import BrokerChannel
from pybroker.yield_every import ITEMS_PER_YIELD, yield_every
from unit_tests.coordinator.controller.cluster import Cluster, NotingChannel, key
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import until

CHANGES = 100


async def test_other_tasks_run_during_a_long_loop() -> None:
    count = 3 * ITEMS_PER_YIELD + 1
    seen: list[int] = []
    runs: list[int] = []

    async def other() -> None:
        while len(seen) < count:
            runs.append(len(seen))
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    async for item in yield_every(range(count)):
        seen.append(item)
    await task
    assert seen == list(range(count))
    assert runs == [ITEMS_PER_YIELD, 2 * ITEMS_PER_YIELD, 3 * ITEMS_PER_YIELD]


async def test_a_failover_yields_to_other_tasks(cluster: Cluster) -> None:
    first = await cluster.member(1)
    await cluster.member(2)
    partitions = 4 * ITEMS_PER_YIELD
    await cluster.create("orders", dict.fromkeys(range(partitions), (1, 2)))
    await cluster.received(2, f"metadata orders-{partitions - 1} leader=1 epoch=0")

    def stored() -> int:
        return sum(entry["what"] == "state" for entry in cluster.journal)

    killing = asyncio.create_task(first.kill())
    seen = [stored()]
    while seen[-1] < 2 * partitions:
        await loop_turns(1)
        seen.append(stored())
    await killing
    assert max(later - earlier for earlier, later in pairwise(seen)) <= ITEMS_PER_YIELD


class GatedChannel(NotingChannel):
    """A channel to a broker that takes a command and answers only when the gate is open."""

    def __init__(self, cluster: Cluster, broker: Broker, gate: asyncio.Event) -> None:
        super().__init__(cluster, broker)
        self._gate = gate

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        await self._gate.wait()
        return await super().leader_and_isr(command)

    async def update_metadata(self, command: UpdateMetadata) -> None:
        await self._gate.wait()
        await super().update_metadata(command)

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        await self._gate.wait()
        return await super().stop_replica(command)


async def test_a_slow_broker_delays_no_other_broker_and_its_pending_work_is_bounded(
    cluster: Cluster,
) -> None:
    """After any number of changes, the broker receives only the final state, once."""
    gate = asyncio.Event()
    gate.set()

    def channel(broker: Broker) -> BrokerChannel:
        return GatedChannel(cluster, broker, gate) if broker.id == 3 else plain(broker)

    plain, cluster.channels = cluster.channels, channel
    first = await cluster.member(1)
    await cluster.member(2)
    await cluster.member(3)
    await cluster.create("orders", dict.fromkeys(range(3), (1, 2, 3)))
    await cluster.received(3, "metadata orders-2 leader=1 epoch=0")
    gate.clear()
    path = paths.partition_state(key("orders-0"))
    for number in range(CHANGES):
        content = {**cluster.json(path), "leader": 1 + number % 2, "leader_epoch": number + 1}
        await cluster.write_json(path, content)
        notice = schemas.encode_partitions([key("orders-0")])
        await cluster.tool.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
        for broker_id in (1, 2):
            line = f"metadata orders-0 leader={1 + number % 2} epoch={number + 1}"
            await cluster.received(broker_id, line)
        term = first.controller._term
        assert term is not None
        work = term._services.notifier._senders[3].work
        kept = len(work._leaders) + len(work._metadata) + len(work._stops) + len(work._deferred)
        assert kept <= 2
    cluster.notes.clear()
    gate.set()
    await cluster.received(3, f"metadata orders-0 leader=2 epoch={CHANGES}")
    await until(lambda: work.take() is None)
    received = [line for line in cluster.lines(3) if not line.startswith("brokers")]
    assert received == [
        "lead orders-0 leader=1 epoch=1 isr=1,2,3",  # the command that it had taken before
        f"lead orders-0 leader=2 epoch={CHANGES} isr=1,2,3",
        f"metadata orders-0 leader=2 epoch={CHANGES}",
    ]
