"""An ISR change whose topic is deleted and recreated meanwhile: the state nodes of the recreated
topic have the same versions as those of the deleted one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import encode_state
from pybroker.errors import ErrorCode
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import (
    LEADER_DURING_DELETION,
    PartitionFacts,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
)
from pybroker.peers.local_channel import LocalBrokerChannel
from pybroker.ports import CoordOp, OpResult, SetOp
from unit_tests.idle_loop import idle
from unit_tests.patience import until
from unit_tests.replication.leading import ALL, LAG_S, Leading
from unit_tests.replication.next_topic import NEXT, NextTopic
from unit_tests.replication.vocabulary import ME, T0, T1, TOPIC_ID

LATE_S = LAG_S + 1


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


async def test_a_leader_in_a_new_session_writes_nothing_before_it_gets_its_roles(
    leading: Leading,
) -> None:
    """While its session was over, no deletion waited for it."""
    other = TopicPartition("other", 0)
    await leading.lead(T0, other)
    for key in (T0, other):
        leading.replicas.append(key=key)
    leading.coord.suspend()
    await leading.pass_time(LATE_S)
    await until(lambda: not leading.replicas.manager.isr_changes)
    leading.coord.expire()
    await NextTopic(leading.tree, T0).comes()
    path = paths.partition_state(T0)
    leading.tree.apply([SetOp(path, encode_state(NEXT))], session_id=0)
    leading.coord.resume()
    await until(lambda: leading.coord.session_id)
    await idle()
    assert leading.node == NEXT
    assert leading.state_of(other).isr == ALL
    facts = PartitionFacts(other, TOPIC_ID, leading.state_of(other), 1, ALL)
    await leading.replicas.stopped(T0, delete=True)
    leading.replicas.manager.broker_epoch = 5
    await leading.replicas.told(facts, broker_epoch=5)
    await leading.until_stored(ME, keys=(other,))
    assert leading.node == NEXT


async def test_roles_of_a_session_that_ended_unheard_of_count_for_nothing(
    leading: Leading,
) -> None:
    """The broker did not know yet that it had registered in that session; the command came late."""
    await leading.lead()
    leading.replicas.append()
    manager = leading.replicas.manager
    manager.broker_epoch = 5
    await leading.tell_again(broker_epoch=5)
    for _ in range(2):  # in the first of them it registered, with epoch 6, and was not answered
        leading.coord.expire()
        await until(lambda: leading.coord.session_id)
    await leading.tell_again(broker_epoch=6)
    await NextTopic(leading.tree, T0).comes()
    path = paths.partition_state(T0)
    leading.tree.apply([SetOp(path, encode_state(NEXT))], session_id=0)
    await leading.pass_time(LATE_S)
    await idle()
    assert leading.node == NEXT


async def test_a_deleted_partition_is_settled_when_nothing_of_it_is_on_its_way(
    leading: Leading,
) -> None:
    await leading.lead()
    leading.replicas.append()
    multi, sent, arrives = leading.coord.multi, asyncio.Event(), asyncio.Event()

    async def late(ops: Sequence[CoordOp]) -> list[OpResult]:
        sent.set()
        await arrives.wait()
        return await multi(ops)

    leading.coord.multi = late  # type: ignore[method-assign]
    await leading.pass_time(LATE_S)
    await sent.wait()
    await leading.replicas.stopped(delete=True)
    await leading.changes.settled({T1})
    settling = asyncio.create_task(leading.changes.settled({T0}))
    await idle()
    assert not settling.done()
    arrives.set()
    await settling


async def test_after_a_lost_reply_it_is_not_called_deleted_before_zookeeper_answers(
    leading: Leading,
) -> None:
    """ZooKeeper's first answer after that follows the write in the order of this broker's
    requests."""
    await leading.lead()
    leading.replicas.append()
    multi, is_lost = leading.coord.multi, asyncio.Event()

    async def lost(ops: Sequence[CoordOp]) -> list[OpResult]:
        leading.coord.lose_reply(applied=False)
        try:
            return await multi(ops)
        finally:
            leading.coord.suspend()
            is_lost.set()

    leading.coord.multi = lost  # type: ignore[method-assign]
    await leading.pass_time(LATE_S)
    await is_lost.wait()
    channel = LocalBrokerChannel(leading.replicas.manager, MetadataView(), leading.changes.settled)
    item = StopReplicaPartition(T0, LEADER_DURING_DELETION, delete=True)
    command = StopReplica(ME, 1, -1, (item,))
    assert await channel.stop_replica(command) == {T0: ErrorCode.REQUEST_TIMED_OUT}
    leading.coord.resume()
    assert await channel.stop_replica(command) == {T0: ErrorCode.NONE}
    leading.coord.suspend()
    assert await channel.stop_replica(command) == {T0: ErrorCode.NONE}
