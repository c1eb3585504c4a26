"""Tests of an ISR change whose topic is deleted and recreated meanwhile: the state nodes of the
recreated topic have the same versions as those of the deleted one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import encode_state
from pybroker.model import TopicPartition
from pybroker.ports import CoordOp, OpResult, SetOp
from unit_tests.patience import until
from unit_tests.replication.leading import LAG_S, Leading
from unit_tests.replication.recreated_topic import NEXT, RecreatedTopic
from unit_tests.replication.vocabulary import ME, T0, T1, TOPIC_ID

LATE_S = LAG_S + 1
OTHER_ID = uuid.UUID(int=11)


async def test_a_change_refused_for_a_deleted_topic_is_not_retried_on_its_recreation(
    leading: Leading,
) -> None:
    await leading.lead(T0, T1)
    for key in (T0, T1):
        leading.replicas.append(key=key)
    multi, path = leading.coord.multi, paths.partition_state(T0)

    async def refused(ops: Sequence[CoordOp]) -> list[OpResult]:
        leading.coord.multi = multi  # type: ignore[method-assign]
        await leading.coord.delete(path)
        try:
            return await multi(ops)
        finally:
            await leading.replicas.stopped(T0, delete=True)
            await leading.coord.create(path, b"of the next")
            await leading.coord.set(path, b"of the next")

    leading.coord.multi = refused  # type: ignore[method-assign]
    await leading.pass_time(LATE_S)
    await until(lambda: leading.state_of(T1).isr == (ME,))
    assert await leading.coord.get(path) == (b"of the next", leading.tree.node(path)[1])  # type: ignore[index]


async def test_a_leader_of_a_deleted_topic_changes_nothing_of_its_recreation(
    leading: Leading,
) -> None:
    """The deletion did not wait for this leader, because its session had ended. Its other
    partitions continue."""
    other = TopicPartition("other", 0)
    await leading.lead(T0)
    await leading.lead(other, topic_id=OTHER_ID)
    for key in (T0, other):
        leading.replicas.append(key=key)
    leading.coord.suspend()
    await leading.pass_time(LATE_S)
    leading.coord.expire()
    await RecreatedTopic(leading.tree, T0).recreate()
    leading.coord.resume()
    await leading.until_stored(ME, keys=(other,))
    await until(lambda: leading.metrics.isr_update_failures)
    assert leading.node == NEXT
    assert leading.hw == 0
    assert await leading.changes.lead_now([leading.partition(T0)]) == set()


async def test_a_write_for_a_deleted_topic_that_arrives_late_is_refused(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    version = leading.version
    recreated_topic = RecreatedTopic(leading.tree, T0)
    recreated_topic.hold_next_write_of(leading.coord)
    await leading.pass_time(LATE_S)
    await until(lambda: recreated_topic.kept)
    await leading.replicas.stopped(delete=True)
    await recreated_topic.recreate()
    leading.tree.apply([SetOp(paths.partition_state(T0), encode_state(NEXT))], session_id=0)
    assert leading.version == version
    recreated_topic.deliver_held_write()
    assert (leading.node, leading.version) == (NEXT, version)


async def test_the_state_of_a_recreated_topic_is_not_adopted_for_the_deleted_one(
    leading: Leading,
) -> None:
    """The new node has the content that the leader wanted to store, and the expected version."""
    await leading.lead()
    leading.replicas.append()
    recreated_topic = RecreatedTopic(leading.tree, T0)
    recreated_topic.hold_next_write_of(leading.coord)
    await leading.pass_time(LATE_S)
    await until(lambda: recreated_topic.kept)
    (wanted,) = (op for op in recreated_topic.kept[0] if isinstance(op, SetOp))
    await recreated_topic.recreate()
    path = paths.partition_state(T0)
    for _ in range(wanted.version + 1):
        leading.tree.apply([SetOp(path, wanted.data)], session_id=0)
    await until(lambda: leading.metrics.isr_update_failures)
    assert leading.hw == 0


async def test_the_isr_of_a_topic_without_a_topic_id_node_can_change(leading: Leading) -> None:
    """An older version of the broker created the topic, and is still the controller."""
    await leading.lead(T0, T1)
    await leading.coord.delete(paths.topic_id(TOPIC_ID))
    partitions = [leading.partition(key) for key in (T0, T1)]
    assert await leading.changes.lead_now(partitions) == {T0, T1}
    for key in (T0, T1):
        leading.replicas.append(key=key)
    await leading.pass_time(LATE_S)
    await leading.until_stored(ME, keys=(T0, T1))
