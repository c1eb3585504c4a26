"""The loss receipts of unclean elections: nodes in ZooKeeper that tell which records an election
may have lost. One multi writes the partition's state and the receipt."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.partitions import Reason, StateWrite
from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.controller.writes import FencedWriter, Write
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.loss_receipts import (
    POWER_LOSS,
    UNCLEAN_ELECTION,
    LossReceipt,
    Receipts,
    decode_receipts,
    encode_receipts,
)
from pybroker.errors import CoordError, MalformedNode, NodeExists, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Coord, CoordOp, CreateOp, SetOp

log = logging.getLogger(__name__)


class ReceiptBook:
    """Prepares the loss receipts of one controller's term. A loss receipt tells which records an
    unclean election may have lost."""

    def __init__(
        self, coord: Coord, writer: FencedWriter, context: ClusterContext, clock: Clock
    ) -> None:
        self._coord = coord
        self._writer = writer
        self._context = context
        self._clock = clock

    async def prepare(self, writes: Sequence[StateWrite]) -> dict[TopicPartition, CoordOp]:
        """Return partition -> the operation that writes the loss receipt, a node that tells which
        records the unclean election may have lost. The caller adds the operation to the multi that
        stores the election. Raises CoordError."""
        if not writes:
            return {}
        parents = dict.fromkeys(paths.losses(write.topic_partition.topic) for write in writes)
        outcomes = await self._writer.write_all([Write((CreateOp(parent),)) for parent in parents])
        for parent, outcome in zip(parents, outcomes, strict=True):
            if isinstance(outcome, CoordError) and not isinstance(outcome, NodeExists):
                log.warning("parent node not created node=%s reason=%r", parent, outcome)
        operations: dict[StateWrite, CoordOp] = await read_each(self._operation, writes)
        return {write.topic_partition: operation for write, operation in operations.items()}

    async def _operation(self, write: StateWrite) -> CoordOp:
        key, path = write.topic_partition, paths.loss(write.topic_partition)
        before = self._context.partitions[key]
        assert before.state is not None
        receipt = LossReceipt(
            leader=write.state.leader,
            leader_epoch=write.state.leader_epoch,
            reason=_reason(write),
            isr_before=before.state.isr,
            eligible_before=before.state.eligible,
            replicas=before.replicas,
            timestamp_ms=self._clock.wall_ms(),
        )
        try:
            data, stat = await self._coord.get(path)
        except NoNode:
            return CreateOp(path, encode_receipts([receipt]))
        earlier: Receipts = ()
        try:
            earlier = decode_receipts(path, data)
        except MalformedNode as error:
            log.error("loss receipts replaced reason=%s", error)
        return SetOp(path, encode_receipts([*earlier, receipt]), stat.version)


def _reason(write: StateWrite) -> str:
    return POWER_LOSS if write.reason is Reason.POWER_LOSS else UNCLEAN_ELECTION


def log_receipt(write: StateWrite, isr_before: Sequence[int], replicas: Sequence[int]) -> None:
    """Log that an election may have lost committed records. The multi that stored `write` also
    stored a loss receipt: a ZooKeeper node about this election."""
    log.warning(
        "loss receipt partition=%s reason=%s leader=%d leader_epoch=%d isr_before=%s replicas=%s:"
        " records that only the earlier in-sync replicas have are discarded",
        write.topic_partition,
        _reason(write),
        write.state.leader,
        write.state.leader_epoch,
        ",".join(map(str, isr_before)),
        ",".join(map(str, replicas)),
    )
