"""Tests of automatic preferred leader elections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from pybroker.coordinator.controller import rebalance
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus
from pybroker.coordinator.controller.rebalance import imbalanced
from pybroker.coordinator.controller.services import RebalanceSettings
from pybroker.model import PartitionState, TopicPartition
from pybroker.ports import CoordOp, OpResult
from unit_tests.coordinator.controller.cluster import Cluster, Member
from unit_tests.patience import until

STATE = "/brokers/topics/orders/partitions/{}/state"
QUICK = RebalanceSettings(imbalance_percentage=10, interval_s=0.01, first_check_s=0.0)


def led(leaders: Iterable[int], preferred: int = 1) -> list[Partition]:
    return [
        Partition(
            TopicPartition(f"of-{preferred}", number),
            (preferred, 9),
            PartitionStatus.ONLINE,
            PartitionState(leader, 0, (preferred, 9), controller_epoch=1),
            0,
        )
        for number, leader in enumerate(leaders)
    ]


def names(found: dict[int, list[TopicPartition]]) -> dict[int, list[int]]:
    return {broker: [key.partition for key in keys] for broker, keys in found.items()}


def test_only_brokers_above_the_imbalance_percentage_are_found() -> None:
    assert imbalanced([], 10) == {}
    assert imbalanced(led([1] * 10), 0) == {}
    assert imbalanced(led([9] + [1] * 9), 10) == {}
    assert names(imbalanced(led([9] + [1] * 8), 10)) == {1: [0]}
    assert names(imbalanced(led([9] + [1] * 9), 9)) == {1: [0]}
    assert names(imbalanced(led([-1, 1]), 10)) == {1: [0]}
    both = led([9, 9, 1]) + led([2, 2, 2, 9], preferred=2)
    assert names(imbalanced(both, 25)) == {1: [0, 1]}
    assert names(imbalanced(both, 24)) == {1: [0, 1], 2: [3]}


async def displaced(cluster: Cluster, isr: list[int], count: int = 2) -> None:
    """Start brokers 1 and 2, which are not the controller. Broker 2 leads all partitions of
    `orders`; broker 1 is their preferred replica."""
    first, second = await cluster.member(1), await cluster.member(2)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", dict.fromkeys(range(count), (1, 2)))
    await cluster.received(2, f"metadata orders-{count - 1} leader=1 epoch=0")
    for member in (first, second):
        await member.controller.stop()
    for number in range(count):
        path = STATE.format(number)
        state = {**cluster.json(path), "leader": 2, "leader_epoch": 5, "isr": isr}
        await cluster.write_json(path, state)


def leaders(cluster: Cluster, count: int = 2) -> set[int]:
    states = [cluster.state(f"orders-{number}") for number in range(count)]
    return {-1 if state is None else state.leader for state in states}


async def test_preferred_replicas_become_leaders_again(cluster: Cluster) -> None:
    await displaced(cluster, [2, 1])
    await cluster.member(3, rebalance=QUICK)
    await cluster.received(1, "lead orders-1 leader=1 epoch=6 isr=2,1")
    await cluster.received(2, "metadata orders-1 leader=1 epoch=6")
    assert leaders(cluster) == {1}


async def test_leaders_stay_when_the_rebalance_is_disabled(cluster: Cluster) -> None:
    await displaced(cluster, [2, 1])
    third = await cluster.member(3)
    await cluster.received(2, "lead orders-1 leader=2 epoch=5 isr=2,1")
    await checked(third)
    assert leaders(cluster) == {2}


async def test_a_lagging_preferred_replica_is_not_elected(cluster: Cluster) -> None:
    await displaced(cluster, [2])
    third = await cluster.member(3, rebalance=QUICK)
    await cluster.received(2, "lead orders-1 leader=2 epoch=5 isr=2")
    await checked(third)
    assert leaders(cluster) == {2}


async def test_a_preferred_replica_that_has_caught_up_is_elected(cluster: Cluster) -> None:
    """The leader has added the preferred replica to the ISR, and the controller has not read this
    ISR yet."""
    await displaced(cluster, [2])
    await cluster.member(3, rebalance=QUICK)
    await cluster.received(2, "lead orders-1 leader=2 epoch=5 isr=2")
    path = STATE.format(0)
    await cluster.write_json(path, {**cluster.json(path), "isr": [2, 1]})
    await cluster.received(1, "lead orders-0 leader=1 epoch=6 isr=2,1")


async def test_a_partition_whose_isr_is_just_changing_waits(cluster: Cluster) -> None:
    """The partition's election is skipped at the first check, and held at the next check."""
    await displaced(cluster, [2, 1])
    await cluster.member(3, rebalance=RebalanceSettings(10, interval_s=0.1, first_check_s=1.0))
    await cluster.received(2, "lead orders-1 leader=2 epoch=5 isr=2,1")
    path = STATE.format(0)
    await cluster.write_json(path, {**cluster.json(path), "isr": [1, 2]})
    await cluster.received(1, "lead orders-0 leader=1 epoch=6 isr=1,2")
    rounds = [note.lines for note in cluster.notes if note.broker_id == 1]
    first = next(lines for lines in rounds if "lead orders-1 leader=1 epoch=6 isr=2,1" in lines)
    assert "lead orders-0 leader=1 epoch=6 isr=1,2" not in first


async def test_a_large_cluster_rebalances_in_rounds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "ELECTIONS_PER_ROUND_MAX", 2)
    monkeypatch.setattr(rebalance, "BETWEEN_ROUNDS_S", 0.0)
    await displaced(cluster, [2, 1], count=5)
    seldom = RebalanceSettings(imbalance_percentage=10, interval_s=3600.0, first_check_s=0.0)
    await cluster.member(3, rebalance=seldom)
    await until(lambda: leaders(cluster, 5) == {1})
    line = "lead orders-4 leader=1 epoch=6 isr=2,1"
    await cluster.received(2, line)
    received = [note.lines for note in cluster.notes if note.broker_id == 2]
    assert [line] in received


async def checked(controller: Member) -> None:
    """Wait until the controller has made a few checks."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 5 * QUICK.interval_s
    await until(lambda: loop.time() > end)
    assert controller.controller.is_active


@pytest.mark.parametrize("lost", range(1, 6))
async def test_a_stored_election_whose_reply_was_lost_is_found(cluster: Cluster, lost: int) -> None:
    """The new state was stored, but the reply was lost, and so were the replies to the next
    attempts and to reading it back. The controller's context then showed nothing to repair."""
    await displaced(cluster, [2, 1], count=1)
    late = RebalanceSettings(imbalance_percentage=10, interval_s=3600.0, first_check_s=0.02)
    third = await cluster.member(3, rebalance=late)
    multi = third.coord.multi

    async def losing(ops: Sequence[CoordOp]) -> list[OpResult]:
        if any(op.path == STATE.format(0) for op in ops):
            third.coord.multi = multi  # type: ignore[method-assign]
            for _ in range(lost):
                third.coord.lose_reply()
        return await multi(ops)

    third.coord.multi = losing  # type: ignore[method-assign]
    await cluster.received(1, "lead orders-0 leader=1 epoch=6 isr=2,1")
    await cluster.received(2, "lead orders-0 leader=1 epoch=6 isr=2,1")
