"""Tests that after a power loss a broker removes its suspect replicas from the ISR before it
registers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.loss_receipts import ACCEPTED_LOSS, POWER_LOSS, decode_receipts
from pybroker.coordinator.zookeeper.registry import create_parents, ensure
from pybroker.coordinator.zookeeper.schemas import TopicAssignment
from pybroker.errors import BadVersion, ConnectionLoss, MultiFailed
from pybroker.model import NO_LEADER, PartitionState, TopicPartition
from pybroker.ports import CheckOp, CoordOp, OpResult
from pybroker.replication.health.power_loss import Left, PowerLoss, in_sync_again
from pybroker.replication.health.step_aside import without
from pybroker.storage.files import SystemDisk
from pybroker.storage.replica_health import Event, Health, ReplicaHealth
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.replication.vocabulary import facts

T0 = TopicPartition("t", 0)
LEFT = Left(log_end=7, high_watermark=9)


def state(
    leader: int, isr: tuple[int, ...], eligible: tuple[int, ...] = (), epoch: int = 4
) -> PartitionState:
    return PartitionState(leader, epoch, isr, 2, eligible)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(2, (2, 3)), None),
        (state(2, (1, 2, 3)), state(2, (2, 3))),
        (state(1, (1, 2, 3)), state(NO_LEADER, (2, 3), epoch=5)),
        (state(2, (2,), (1, 3)), state(2, (2,), (3,))),
        (state(1, (1,), (3,)), state(NO_LEADER, (), (3,), epoch=5)),
        (state(1, (1,)), state(NO_LEADER, (), epoch=5)),
        (state(NO_LEADER, (1,)), state(NO_LEADER, (), epoch=5)),
        (state(NO_LEADER, (1, 2)), state(NO_LEADER, (2,))),
        (state(NO_LEADER, ()), None),
    ],
)
def test_without_removes_the_replica_from_all_roles(
    before: PartitionState, after: PartitionState | None
) -> None:
    assert without(before, 1) == after


class Cluster:
    """A topic in ZooKeeper, and broker 1 before its registration."""

    def __init__(self) -> None:
        self.tree = MemoryTree(ManualClock())
        self.coord = MemoryCoord(self.tree, name="broker-1")
        self.other = MemoryCoord(self.tree, name="broker-2")

    async def begin(self, replicas: tuple[int, ...], stored: PartitionState) -> None:
        await self.coord.start()
        await self.other.start()
        await create_parents(self.coord)
        topic = schemas.encode_topic(TopicAssignment({0: replicas}))
        await self.coord.create(paths.topic("t"), topic)
        await ensure(self.coord, paths.partition(T0))
        await self.coord.create(paths.partition_state(T0), schemas.encode_state(stored))

    async def step_aside(self) -> None:
        await PowerLoss(self.coord, 1, ManualClock()).step_aside({T0: LEFT})

    async def stored(self) -> tuple[PartitionState, int]:
        path = paths.partition_state(T0)
        data, stat = await self.other.get(path)
        return schemas.decode_state(path, data), stat.version

    async def store(self, changed: PartitionState) -> None:
        await self.other.set(paths.partition_state(T0), schemas.encode_state(changed))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_a_suspect_leader_resigns(cluster: Cluster) -> None:
    await cluster.begin((1, 2, 3), state(1, (1, 2)))
    await cluster.step_aside()
    assert await cluster.stored() == (state(NO_LEADER, (2,), epoch=5), 1)


async def test_no_state_is_written_for_a_replica_neither_in_sync_nor_eligible(
    cluster: Cluster,
) -> None:
    await cluster.begin((1, 2, 3), state(2, (2, 3)))
    await cluster.step_aside()
    assert await cluster.stored() == (state(2, (2, 3)), 0)
    assert cluster.tree.node(paths.loss(T0)) is None


@pytest.mark.parametrize("isr", [(2, 3), (1, 2, 3)])
async def test_no_fetch_of_an_earlier_incarnation_adds_the_replica_to_the_isr(
    cluster: Cluster, isr: tuple[int, ...]
) -> None:
    """A paused leader may still have such a fetch to process. The registration raises the
    incarnation, too, but it waits for the end of the earlier session."""
    await cluster.begin((1, 2, 3), state(2, isr))
    await ensure(cluster.coord, paths.incarnation(1))
    of_earlier_life = CheckOp(paths.incarnation(1), 0)
    await cluster.other.multi([of_earlier_life])
    await cluster.step_aside()
    with pytest.raises(MultiFailed):
        await cluster.other.multi([of_earlier_life])


def test_a_replica_is_suspect_until_it_is_in_sync_again() -> None:
    others = TopicPartition("t", 1)
    health = ReplicaHealth(SystemDisk())
    for key in (T0, others):
        health.move(key, Event.UNSYNCED)
    not_yet = [facts(T0, leader=2, isr=(2,)), facts(others, leader=2, isr=(2, 3))]
    in_sync_again(health, 1, not_yet)
    assert {*health.having(Health.SUSPECT)} == {T0, others}
    in_sync_again(health, 1, [facts(T0, leader=2, isr=(2, 1))])
    assert health.having(Health.SUSPECT) == [others]
    in_sync_again(health, 1, [facts(T0, leader=2, isr=(2,), epoch=1)])  # it only lags
    assert health.having(Health.SUSPECT) == [others]


async def test_the_only_replica_of_a_partition_stays_with_a_receipt(cluster: Cluster) -> None:
    await cluster.begin((1,), state(1, (1,)))
    for _ in range(2):
        await cluster.step_aside()
    assert await cluster.stored() == (state(1, (1,)), 0)
    data, _ = await cluster.other.get(paths.loss(T0))
    (found,) = decode_receipts(paths.loss(T0), data)
    assert (found.reason, found.leader, found.leader_epoch, found.log_end) == (POWER_LOSS, 1, 4, 7)


async def test_the_receipt_of_an_accepted_loss_says_so(cluster: Cluster) -> None:
    await cluster.begin((1,), state(1, (1,)))
    await PowerLoss(cluster.coord, 1, ManualClock()).step_aside({T0: Left(0, 0)}, ACCEPTED_LOSS)
    data, _ = await cluster.other.get(paths.loss(T0))
    (found,) = decode_receipts(paths.loss(T0), data)
    assert (found.reason, found.log_end) == (ACCEPTED_LOSS, 0)


async def test_no_state_is_written_for_a_partition_that_was_reassigned(cluster: Cluster) -> None:
    await cluster.begin((2,), state(2, (2,)))
    await cluster.step_aside()
    assert await cluster.stored() == (state(2, (2,)), 0)


async def test_a_deleted_topic_does_not_delay_other_partitions(cluster: Cluster) -> None:
    await cluster.coord.start()
    await create_parents(cluster.coord)
    await cluster.step_aside()


async def between(cluster: Cluster, change: Callable[[], object]) -> None:
    """Run `change` between the broker's read and its write of the state node."""
    original = cluster.coord.multi
    done = False

    async def late(ops: Sequence[CoordOp]) -> list[OpResult]:
        nonlocal done
        if not done:
            done = True
            result = change()
            if asyncio.iscoroutine(result):
                await result
        return await original(ops)

    cluster.coord.multi = late  # type: ignore[method-assign]
    await cluster.step_aside()


async def test_a_leader_elected_meanwhile_stays_leader(cluster: Cluster) -> None:
    await cluster.begin((1, 2, 3), state(1, (1, 2)))
    await between(cluster, lambda: cluster.store(state(2, (2, 1), epoch=5)))
    assert await cluster.stored() == (state(2, (2,), epoch=5), 2)


@pytest.mark.parametrize("applied", [True, False])
async def test_the_state_is_read_again_after_a_lost_reply(cluster: Cluster, applied: bool) -> None:
    await cluster.begin((1, 2, 3), state(1, (1, 2)))
    await between(cluster, lambda: cluster.coord.lose_reply(applied=applied))
    assert await cluster.stored() == (state(NO_LEADER, (2,), epoch=5), 1)


async def test_a_write_that_fails_repeatedly_raises(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.coordinator.zookeeper.repeating._RETRY_S", 0)
    await cluster.begin((1, 2, 3), state(1, (1, 2)))

    async def refused(ops: Sequence[CoordOp]) -> list[OpResult]:
        if len(ops) == 1:
            return await cluster.other.multi(ops)
        raise MultiFailed(1, BadVersion(ops[1].path))

    cluster.coord.multi = refused  # type: ignore[method-assign]
    with pytest.raises(BadVersion):
        await cluster.step_aside()
    cluster.coord.suspend()
    with pytest.raises(ConnectionLoss):
        await cluster.step_aside()
