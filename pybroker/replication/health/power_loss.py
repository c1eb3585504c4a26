"""The handling of suspect replicas after a power loss. A power loss destroys records that were not
synced, so each replica whose log was not closed is suspect.

Before the broker registers, it removes its suspect replicas from the ISR and from the eligible
leader replicas (KIP-966), so that the suspect replicas catch up as followers. If a partition has
only one assigned replica, this replica stays in the ISR, and the broker writes a loss receipt to
ZooKeeper: the records from the log end offset on may be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.loss_receipts import (
    POWER_LOSS,
    LossReceipt,
    Receipts,
    decode_receipts,
    encode_receipts,
)
from pybroker.coordinator.zookeeper.registry import ensure, raise_incarnation
from pybroker.errors import NoNode
from pybroker.model import PartitionFacts, PartitionState, TopicPartition
from pybroker.ports import Clock, Coord, CoordOp, CreateOp, SetOp
from pybroker.replication.health.step_aside import StepAside, without
from pybroker.storage.manager import LogManager
from pybroker.storage.replica_health import Event, Health, ReplicaHealth

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Left:
    """The log end offset of a replica after a power loss, and its last checkpointed high
    watermark."""

    log_end: int
    high_watermark: int


def left_of(logs: LogManager, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Left]:
    """Return partition -> log end offset and checkpointed high watermark. Partitions without a log
    are omitted."""
    return {
        key: Left(found.log_end_offset, logs.high_watermark_checkpoint(key))
        for key in keys
        if (found := logs.log(key)) is not None
    }


def in_sync_again(
    health: ReplicaHealth, broker_id: int, partitions: Iterable[PartitionFacts]
) -> None:
    """Mark each suspect replica of this broker as healthy if it is in the ISR again. `partitions`
    are the partition states that the controller has sent."""
    suspects = set(health.having(Health.SUSPECT))
    for each in partitions if suspects else ():
        if broker_id in each.state.isr and each.topic_partition in suspects:
            health.move(each.topic_partition, Event.IN_SYNC, Health.SUSPECT)


class PowerLoss:
    """Handles the suspect replicas of a starting broker. A suspect replica may have lost
    records."""

    def __init__(self, coord: Coord, broker_id: int, clock: Clock) -> None:
        self._coord = coord
        self._broker_id = broker_id
        self._clock = clock
        self._leave = StepAside(coord, broker_id)

    async def step_aside(
        self, suspects: Mapping[TopicPartition, Left], reason: str = POWER_LOSS
    ) -> None:
        """Remove the replicas `suspects` from the ISR and from the eligible replicas (KIP-966). For
        a partition with only one assigned replica, write a loss receipt (see the module) to
        ZooKeeper instead. `reason` appears in log lines and loss receipts. Raises CoordError: the
        broker must then not register."""

        async def leave(key: TopicPartition) -> None:
            left = suspects[key]
            decide = partial(self._decide, key, left, reason)
            await self._leave(key, f"{reason} log_end={left.log_end}", decide)

        if suspects:
            await raise_incarnation(self._coord, self._broker_id)
        await bounded_gather(leave, sorted(suspects))

    async def _decide(
        self,
        key: TopicPartition,
        left: Left,
        reason: str,
        state: PartitionState,
        topic: topic_nodes.Topic,
    ) -> PartitionState | None:
        replicas = await self._leave.assigned(key)
        if self._broker_id not in replicas:
            return None
        if len(replicas) > 1:
            return without(state, self._broker_id)
        await self._write_receipt(key, topic, state, left, reason)
        return None

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
            return  # an earlier start of the broker wrote it, and was interrupted later
        encoded = encode_receipts((*receipts, receipt))
        write: CoordOp = CreateOp(path, encoded)
        if version is None:
            await ensure(self._coord, paths.parent(path))
        else:
            write = SetOp(path, encoded, version)
        await topic_nodes.apply(self._coord, topic, write)
        log.warning(
            "loss receipt partition=%s reason=%s log_end=%d "
            "high_watermark_checkpoint=%d: records at and after log_end may be lost",
            key,
            reason,
            left.log_end,
            left.high_watermark,
        )
