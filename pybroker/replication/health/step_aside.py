"""How a broker removes its own replica from the leadership, the ISR and the eligible replicas of a
partition: by one conditional write of the state node."""

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
"""Given the stored state, and the topic to which it belongs: the state that is to replace it, None
if none is. Raises CoordError."""


def without(state: PartitionState, broker_id: int) -> PartitionState | None:
    """The state in which that broker's replica counts for nothing. If the replica led, the
    partition has no leader. The replicas are told of that, and of a partition in which no replica
    counts any more, by a new leader epoch. None if the replica counts for nothing already."""
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
    """For the replicas of one broker."""

    def __init__(self, coord: Coord, broker_id: int) -> None:
        self.coord = coord
        self.broker_id = broker_id
        self.incarnation = -1
        """Which the broker became by the last write that raised it."""

    async def __call__(
        self, key: TopicPartition, reason: str, decide: Decide, *, raises: bool = False
    ) -> PartitionState | None:
        """Replace the stored state by what `decide` makes of it; gives the state that was written.
        None if nothing is to be written: `decide` says so, the topic is gone, the partition was
        never led, or its state cannot be understood. `reason` is what the log line says.
        With `raises` the broker becomes another incarnation in the same multi: a fetch that is
        still on its way speaks for the log that was, and must bring no replica back.

        Both are done again after a change by others and after a lost reply. Raises CoordError if
        that does not help."""
        try:
            return await repeat_conditional_write(
                partial(self._try, key, reason, decide, raises=raises)
            )
        except NoNode:
            return None
        except MalformedNode as error:
            # The controller leaves such a partition alone, too: no replica can be elected.
            log.error("replica does not step aside partition=%s error=%s", key, error)
            return None

    async def assigned(self, key: TopicPartition) -> tuple[int, ...]:
        """The brokers that are to have a replica. Raises NoNode, MalformedNode, CoordError."""
        path = paths.topic(key.topic)
        topic = decode_topic(path, (await self.coord.get(path))[0])
        return topic.replicas.get(key.partition, ())

    async def _try(
        self, key: TopicPartition, reason: str, decide: Decide, *, raises: bool
    ) -> PartitionState | None:
        topic = key.topic, await topic_nodes.stored_id(self.coord, key.topic)
        path = paths.partition_state(key)
        data, stat = await self.coord.get(path)
        changed = await decide(decode_state(path, data), topic)
        if changed is not None:
            write = SetOp(path, encode_state(changed, data), stat.version)
            raising = [SetOp(paths.incarnation(self.broker_id), b"")] if raises else []
            *_, last = await topic_nodes.apply(self.coord, topic, write, *raising)
            if raises:
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
