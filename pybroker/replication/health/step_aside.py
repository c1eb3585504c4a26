"""Changes the state of a partition in ZooKeeper so that one broker is neither leader nor in-sync
replica nor eligible replica."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.repeating import repeat_conditional_write
from pybroker.coordinator.zookeeper.schemas import decode_state, decode_topic, encode_state
from pybroker.errors import MalformedNode, NoNode
from pybroker.model import NO_LEADER, PartitionState, TopicPartition, is_orphaned
from pybroker.ports import Coord, NodeStat, SetOp

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")

Decide = Callable[[PartitionState, topic_nodes.Topic], Awaitable[PartitionState | None]]
"""Called with the stored partition state and the topic's name and id. Returns the state to write,
or None to write nothing. Raises CoordError."""


def without(state: PartitionState, broker_id: int) -> PartitionState | None:
    """Return `state` without this broker as leader, in-sync or eligible replica; None if the broker
    has none of these roles. The leader epoch grows by 1 if the broker led, or if the new state has
    no leader, no in-sync replica and no eligible replica."""
    led = state.leader == broker_id
    if not led and broker_id not in state.isr and broker_id not in state.eligible:
        return None
    changed = replace(
        state,
        leader=NO_LEADER if led else state.leader,
        isr=tuple(replica for replica in state.isr if replica != broker_id),
        eligible=tuple(replica for replica in state.eligible if replica != broker_id),
    )
    is_news = led or is_orphaned(changed)
    return replace(changed, leader_epoch=state.leader_epoch + is_news)


class StepAside:
    """Removes one broker from partition states in ZooKeeper: as leader, as in-sync replica and as
    eligible replica."""

    def __init__(self, coord: Coord, broker_id: int) -> None:
        self.coord = coord
        self.broker_id = broker_id
        self.incarnation = -1
        """The broker's incarnation after the last write that raised it; -1 before the first one."""

    async def __call__(
        self, key: TopicPartition, reason: str, decide: Decide, *, raises_incarnation: bool = False
    ) -> PartitionState | None:
        """Write the new state that `decide` returns for the present state of partition `key`, and
        return the new state. Return None without a write if `decide` returned None, or a node is
        missing or malformed.

        With `raises_incarnation` the write also increases the broker's incarnation number, as each
        registration of the broker does. A fetch with an earlier incarnation cannot add the replica
        to the ISR. Raises CoordError if all attempts fail.
        """
        try:
            return await repeat_conditional_write(
                partial(self._try, key, reason, decide, raises_incarnation=raises_incarnation)
            )
        except NoNode:
            return None
        except MalformedNode as error:
            # The controller elects no leader for a partition with a malformed node.
            log.error("replica cannot step aside partition=%s error=%s", key, error)
            return None

    async def assigned(self, key: TopicPartition) -> tuple[int, ...]:
        """Return the ids of the brokers to which the partition is assigned in ZooKeeper. Raises
        NoNode, MalformedNode, CoordError."""
        path = paths.topic(key.topic)
        topic = decode_topic(path, (await self.coord.get(path))[0])
        return topic.replicas.get(key.partition, ())

    async def _try(
        self, key: TopicPartition, reason: str, decide: Decide, *, raises_incarnation: bool
    ) -> PartitionState | None:
        topic = key.topic, await topic_nodes.stored_id(self.coord, key.topic)
        path = paths.partition_state(key)
        data, stat = await self.coord.get(path)
        changed = await decide(decode_state(path, data), topic)
        if changed is not None:
            write = SetOp(path, encode_state(changed, data), stat.version)
            raising = [SetOp(paths.incarnation(self.broker_id), b"")] if raises_incarnation else []
            *_, last = await topic_nodes.apply(self.coord, topic, write, *raising)
            if raises_incarnation:
                assert isinstance(last, NodeStat)
                self.incarnation = last.version
            state_change.warning(
                "replica steps aside partition=%s reason=%s leader=%d leader_epoch=%d isr=%s"
                " eligible=%s",
                key,
                reason,
                changed.leader,
                changed.leader_epoch,
                ",".join(map(str, changed.isr)),
                ",".join(map(str, changed.eligible)),
            )
        return changed
