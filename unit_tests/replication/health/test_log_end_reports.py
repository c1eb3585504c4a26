"""Tests that each replica of an orphaned partition reports its log end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.log_end_reports import LogEndReport, read_log_end
from pybroker.coordinator.zookeeper.registry import create_parents, read_incarnation
from pybroker.coordinator.zookeeper.schemas import decode_partitions
from pybroker.model import (
    NO_LEADER,
    NO_TOPIC_ID,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    TopicPartition,
)
from pybroker.replication.authority import Authority
from pybroker.replication.health.log_end_reports import LogEndReports
from pybroker.replication.manager import ReplicaManager
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.handlers.bench import BROKER_ID, Bench, batch
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S, until

KEY = TopicPartition("t", 0)
OTHER = BROKER_ID + 1
ORPHANED_IN = 7


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path) as started:
        await started.create("t")
        await started.produce("t", batch(b"a"))
        yield started


async def orphan(bench: Bench) -> None:
    """Send LeaderAndIsr for an orphaned partition: no leader, in-sync or eligible replica."""
    replicas, epoch = bench.app.replicas, bench.app.controller.epoch
    topic_id = replicas.partition(KEY).topic_id
    assert topic_id is not None
    state = PartitionState(NO_LEADER, ORPHANED_IN, (), epoch)
    facts = PartitionFacts(KEY, topic_id, state, 3, (BROKER_ID, OTHER))
    command = LeaderAndIsr(BROKER_ID, epoch, replicas.broker_epoch, (facts,))
    await replicas.leader_and_isr(command)


async def reported(bench: Bench, incarnation: int) -> LogEndReport:
    """Wait for a report with that incarnation, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await read_log_end(bench.coord, KEY, BROKER_ID)
            if found is not None and found.incarnation == incarnation:
                return found


async def test_a_broker_that_registers_again_reports_again(bench: Bench) -> None:
    """The controller ignores an earlier report: the session may have ended by a power loss."""
    await orphan(bench)
    before = await read_incarnation(bench.coord, BROKER_ID)
    report = await reported(bench, before)
    assert (report.epoch, report.end, report.leader_epoch) == (0, 1, ORPHANED_IN)
    epoch = bench.app.controller.epoch
    bench.coord.expire()
    await until(
        lambda: bench.app.controller.epoch > epoch and bench.app.replicas.lease is Authority.ALL
    )
    await orphan(bench)
    now = await read_incarnation(bench.coord, BROKER_ID)
    assert now > before
    assert (await reported(bench, now)).end == 1


async def test_the_same_state_again_writes_no_new_report(bench: Bench) -> None:
    await orphan(bench)
    await reported(bench, await read_incarnation(bench.coord, BROKER_ID))
    path = paths.suspect(KEY, BROKER_ID)
    node = bench.tree.node(path)
    assert node is not None
    await orphan(bench)
    await idle()
    again = bench.tree.node(path)
    assert again is not None and again[1].version == node[1].version


async def test_a_broker_that_raises_its_incarnation_reports_again(bench: Bench) -> None:
    """Another replica of the broker has stepped aside, which raised the incarnation. The state of
    the orphaned partition has not changed, so the controller does not send it again."""
    await orphan(bench)
    before = await read_incarnation(bench.coord, BROKER_ID)
    await reported(bench, before)
    stat = await bench.coord.set(paths.incarnation(BROKER_ID), b"")
    bench.app._incarnation_raised(stat.version)
    assert stat.version > before
    assert (await reported(bench, stat.version)).end == 1


async def test_a_deleted_topic_does_not_delay_reports_of_other_topics() -> None:
    coord = MemoryCoord(MemoryTree(SystemClock()))
    await coord.start()
    await create_parents(coord)
    state = PartitionState(NO_LEADER, ORPHANED_IN, (), 1)
    log = SimpleNamespace(latest_epoch=0, log_end_offset=1)
    ids = {TopicPartition("gone", 0): uuid.UUID(int=7), KEY: uuid.UUID(int=8)}
    waiting = {
        key: SimpleNamespace(state=state, log=log, topic_id=topic_id)
        for key, topic_id in ids.items()
    }
    await coord.create(paths.topic_id(ids[KEY]))
    replicas = SimpleNamespace(partitions=waiting, broker_id=BROKER_ID)
    reports = LogEndReports(coord, cast(ReplicaManager, replicas), lambda: 3)
    for key in ids:
        replicas.on_orphaned(SimpleNamespace(topic_partition=key))
    reports.loop.start()
    await until(lambda: KEY in reports._told)
    for key in ids:
        report = await read_log_end(coord, key, BROKER_ID)
        assert (report is not None) == (key == KEY)
    await reports.loop.stop()
    await coord.close()


async def test_no_notification_exceeds_the_largest_node_size(tmp_path: Path) -> None:
    """ZooKeeper refuses a node that is too large, and the controller would not be notified of any
    report."""
    coord = MemoryCoord(MemoryTree(SystemClock()))
    await coord.start()
    await create_parents(coord)
    state = PartitionState(NO_LEADER, ORPHANED_IN, (), 1)
    log = SimpleNamespace(latest_epoch=0, log_end_offset=1)
    waiting = SimpleNamespace(state=state, log=log, topic_id=None)
    await coord.create(paths.topic_id(NO_TOPIC_ID))
    keys = [TopicPartition("t" * 249, number) for number in range(2_100)]
    replicas = SimpleNamespace(partitions=dict.fromkeys(keys, waiting), broker_id=BROKER_ID)
    reports = LogEndReports(coord, cast(ReplicaManager, replicas), lambda: 3)
    for key in keys:
        replicas.on_orphaned(SimpleNamespace(topic_partition=key))
    reports.loop.start()
    await until(lambda: len(reports._told) == len(keys))
    await reports.loop.stop()
    told: list[TopicPartition] = []
    for name in await coord.children(paths.ISR_CHANGES):
        path = f"{paths.ISR_CHANGES}/{name}"
        told += decode_partitions(path, (await coord.get(path))[0])
    assert sorted(told) == keys
    await coord.close()
