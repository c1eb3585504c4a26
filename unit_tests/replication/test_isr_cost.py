"""The number of ZooKeeper requests for the ISR of many partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybroker.model import TopicPartition
from pybroker.ports import CoordOp, OpResult
from pybroker.replication.partition import Partition
from unit_tests.patience import until
from unit_tests.replication.leading import ALL, LAG_S, Leading
from unit_tests.replication.recreated_topic import RecreatedTopic
from unit_tests.replication.vocabulary import ME

MANY = [TopicPartition("t", number) for number in range(250)]


def count_multis(leading: Leading) -> Callable[[], int]:
    """Count the multis from now on, including refused ones. Return a function that returns the
    number."""
    multis = 0
    write = leading.coord.multi

    async def counted(ops: Sequence[CoordOp]) -> list[OpResult]:
        nonlocal multis
        multis += 1
        return await write(ops)

    leading.coord.multi = counted  # type: ignore[method-assign]
    return lambda: multis


async def test_hundreds_of_changes_share_a_few_multis(leading: Leading) -> None:
    await leading.lead(*MANY)
    for key in MANY:
        leading.replicas.append(key=key)
        leading.fetch(2, 1, key=key)
    multis = count_multis(leading)
    leading.clock.advance(LAG_S + 1)
    for key in MANY:
        leading.fetch(2, 1, key=key)
    await leading.changes.review_all()
    await leading.until_stored(ME, 2, keys=MANY)
    assert multis() == 3


async def test_lead_now_checks_many_partitions_in_few_multis(leading: Leading) -> None:
    await leading.lead(*MANY)
    led = [leading.partition(key) for key in MANY]
    multis = count_multis(leading)
    assert await leading.changes.lead_now(led) == set(MANY)
    assert multis() == 3
    await leading.meddle(MANY[7], leader=2, leader_epoch=1)
    assert await leading.changes.lead_now(led) == {*MANY} - {MANY[7]}
    assert multis() == 3 + 3 + 100
    await RecreatedTopic(leading.tree, MANY[0]).recreate()
    assert await leading.changes.lead_now(led) == set()


def certain(leading: Leading, key: TopicPartition) -> bool:
    return leading.partition(key).certainly_leads(leading.clock.monotonic(), LAG_S * 0.1)


async def test_an_idle_partition_costs_zookeeper_little_while_a_follower_is_down(
    strict: Leading,
) -> None:
    """The ISR is too small without the follower, so the follower stays eligible: the controller may
    elect it at any time."""
    await strict.lead(*MANY, isr=(ME,), eligible=(2,))
    multis = count_multis(strict)
    for _ in range(10):
        strict.clock.advance(LAG_S / 2)
        await strict.changes.review_all()
        await until(lambda: all(certain(strict, key) for key in MANY))
    assert multis() == 10 * 3


async def test_a_review_looks_only_at_partitions_that_are_not_settled(leading: Leading) -> None:
    await leading.lead(*MANY)
    for key in MANY:
        for broker in (2, 3):
            leading.fetch(broker, 0, key=key)
            leading.fetch(broker, 0, key=key)
    await leading.changes.review_all()
    await leading.until_stored(*ALL, keys=MANY)
    reviewed: list[TopicPartition] = []
    manager = leading.replicas.manager
    review = manager.review_isr

    def noting(partition: Partition) -> None:
        reviewed.append(partition.topic_partition)
        review(partition)

    manager.review_isr = noting  # type: ignore[method-assign]
    await leading.changes.review_all()
    assert reviewed == []
    leading.replicas.append(key=MANY[7])
    await leading.changes.review_all()
    assert reviewed == [MANY[7]]
    leading.clock.advance(LAG_S)
    await leading.changes.review_all()
    assert set(reviewed) == set(MANY)
