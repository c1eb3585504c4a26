"""What a broker does after its machine went down, before it registers again.

What had not been made durable is gone, and nobody can tell from the files how much that was: a log
may simply end earlier. So each replica that was not closed in order leaves the in-sync replicas and
the eligible ones of its partition, and comes back as any other that has to catch up. Only where
there is no other replica is it used as it is, with a loss receipt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.loss_receipts import (
    POWER_LOSS,
    LossReceipt,
    Receipts,
    decode_receipts,
    encode_receipts,
)
from pybroker.coordinator.zookeeper.registry import end_earlier_lives, ensure
from pybroker.coordinator.zookeeper.schemas import decode_state, decode_topic, encode_state
from pybroker.errors import BadVersion, ConnectionLoss, MalformedNode, NodeExists, NoNode
from pybroker.model import (
    NO_LEADER,
    NO_TOPIC_ID,
    PartitionFacts,
    PartitionState,
    TopicPartition,
    is_orphaned,
)
from pybroker.ports import Clock, Coord, CoordOp, CreateOp, SetOp
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")

_AT_A_TIME: Final = 100
_ATTEMPTS_MAX: Final = 10
"""Leaders and the controller may change a state meanwhile."""
_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a log: where it ends now, and the high watermark that was last written."""

    log_end: int
    high_watermark: int


def without(state: PartitionState, broker_id: int) -> PartitionState | None:
    """The state in which that broker's replica counts for nothing; where it led, nobody leads. Of
    that, and that nobody counts any more, the replicas are told by a new leader epoch. None if it
    counts for nothing already."""
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


class SuspectReplicas:
    """The replicas of one broker that may lack records since its machine went down, until each is
    in sync again. Replicas of topics that were deleted since may be among them."""

    def __init__(self, broker_id: int, found: Iterable[TopicPartition]) -> None:
        """`found` at the start."""
        self._broker_id = broker_id
        self._suspects = set(found)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._suspects)

    def told(self, partitions: Iterable[PartitionFacts]) -> None:
        """What the controller says of partitions."""
        if self._suspects:
            self._suspects.difference_update(
                each.topic_partition for each in partitions if self._broker_id in each.state.isr
            )


class PowerLoss:
    """Of one broker, at its start."""

    def __init__(self, coord: Coord, broker_id: int, clock: Clock) -> None:
        self._coord = coord
        self._broker_id = broker_id
        self._clock = clock

    async def settle(self, logs: LogManager) -> None:
        """As `step_aside`, with the suspects among these logs."""
        suspects = {
            key: Left(found.log_end_offset, logs.high_watermark_checkpoint(key))
            for key in logs.suspects()
            if (found := logs.log(key)) is not None
        }
        await self.step_aside(suspects)

    async def step_aside(
        self, suspects: Mapping[TopicPartition, Left], reason: str = POWER_LOSS
    ) -> None:
        """Let none of these replicas be elected for what it had; afterwards the broker may
        register. Raises CoordError: then it may not."""
        if suspects:
            await end_earlier_lives(self._coord, self._broker_id)
        keys = sorted(suspects)
        for start in range(0, len(keys), _AT_A_TIME):
            some = keys[start : start + _AT_A_TIME]
            await asyncio.gather(*(self._step_aside(key, suspects[key], reason) for key in some))

    async def _step_aside(self, key: TopicPartition, left: Left, reason: str) -> None:
        """Conditional writes: a change by others, or a lost reply, is read and decided again."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                await self._try(key, left, reason)
            except (BadVersion, NodeExists, ConnectionLoss):
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
                await asyncio.sleep(_RETRY_S if attempt else 0)
            except NoNode:
                return  # the topic is gone, or the partition was never led
            except MalformedNode as error:
                # The controller leaves such a partition alone, too: nobody can be elected.
                log.error("suspect replica not settled partition=%s reason=%s", key, error)
                return
            else:
                return

    async def _try(self, key: TopicPartition, left: Left, reason: str) -> None:
        path = paths.topic(key.topic)
        assignment = decode_topic(path, (await self._coord.get(path))[0])
        topic = key.topic, assignment.topic_id or NO_TOPIC_ID
        replicas = assignment.replicas.get(key.partition, ())
        if self._broker_id not in replicas:
            return
        path = paths.partition_state(key)
        data, stat = await self._coord.get(path)
        state = decode_state(path, data)
        if len(replicas) == 1:
            await self._write_receipt(key, topic, state, left, reason)
            return
        changed = without(state, self._broker_id)
        if changed is None:
            return
        write = SetOp(path, encode_state(changed, data), stat.version)
        await topic_nodes.apply(self._coord, topic, write)
        state_change.warning(
            "replica steps aside partition=%s reason=%s log_end=%d leader=%d "
            "leader_epoch=%d isr=%s eligible=%s",
            key,
            reason,
            left.log_end,
            changed.leader,
            changed.leader_epoch,
            ",".join(map(str, changed.isr)),
            ",".join(map(str, changed.eligible)),
        )

    async def _write_receipt(
        self,
        key: TopicPartition,
        topic: topic_nodes.Topic,
        state: PartitionState,
        left: Left,
        reason: str,
    ) -> None:
        path = paths.loss(key)
        version: int | None = None
        receipts: Receipts = ()
        with suppress(NoNode):
            data, stat = await self._coord.get(path)
            receipts, version = decode_receipts(path, data), stat.version
        receipt = LossReceipt(
            leader=self._broker_id,
            leader_epoch=state.leader_epoch,
            reason=reason,
            isr_before=state.isr,
            replicas=(self._broker_id,),
            timestamp_ms=self._clock.wall_ms(),
            eligible_before=state.eligible,
            log_end=left.log_end,
        )
        if receipts and replace(receipts[-1], timestamp_ms=receipt.timestamp_ms) == receipt:
            return  # written by a start that did not come to its end
        encoded = encode_receipts((*receipts, receipt))
        write: CoordOp = CreateOp(path, encoded)
        if version is None:
            await ensure(self._coord, paths.parent(path))
        else:
            write = SetOp(path, encoded, version)
        await topic_nodes.apply(self._coord, topic, write)
        log.warning(
            "loss_receipt partition=%s reason=%s log_end=%d "
            "high_watermark_checkpoint=%d: records that it had may be missing",
            key,
            reason,
            left.log_end,
            left.high_watermark,
        )
