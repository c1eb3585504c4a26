"""Loss receipts: which records of a partition may be gone, since when, and who gave them up.

The controller writes one in the same multi as the state of an unclean election; the new leader adds
where its log ends, and every replica what it cuts away. So whoever misses records finds out why,
and a replica can tell a loss that was decided from one that is a defect. The node goes with its
topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.json_nodes import Fields, dump, load_object
from pybroker.errors import BadVersion, ConnectionLoss, NoNode
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition
from pybroker.ports import Coord

UNCLEAN_ELECTION: Final = "unclean-election"
"""A replica leads that may lack committed records, since no other was left."""
POWER_LOSS: Final = "power-loss"
"""The machine of the last replica went down, or its disk failed, and what was not on disk is
gone."""
ACCEPTED_LOSS: Final = "accepted-loss"
"""The log directory of the last replica is gone, and the operator has said that it is so."""

RECEIPTS_MAX: Final = 10
"""The newest ones of a partition are kept."""
GIVEN_UP_MAX: Final = 50
ATTEMPTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A replica has cut its log: the offsets from `start` on, `end` not included."""

    replica: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LossReceipt:
    """One loss. `leader` led from `leader_epoch` on; `isr_before` and `eligible_before` held all
    that was committed, and none of them could lead. `log_end`: where the new leader's log ended,
    NO_OFFSET until it has said so."""

    leader: int
    leader_epoch: int
    reason: str
    isr_before: tuple[int, ...]
    replicas: tuple[int, ...]
    timestamp_ms: int
    eligible_before: tuple[int, ...] = ()
    log_end: int = NO_OFFSET
    given_up: tuple[GivenUp, ...] = ()


Receipts = tuple[LossReceipt, ...]
"""Of one partition, the newest last."""


def encode_receipts(receipts: Sequence[LossReceipt]) -> bytes:
    """Offsets and times are strings, as every number over 32 bits in a node."""
    return dump({"version": 1, "receipts": [_to_json(each) for each in receipts[-RECEIPTS_MAX:]]})


def decode_receipts(path: str, data: bytes) -> Receipts:
    """Raises MalformedNode."""
    return tuple(_from_json(each) for each in load_object(path, data).objects("receipts"))


class LossReceipts:
    """The receipts as the brokers read and complete them. All may raise CoordError; what reads also
    MalformedNode."""

    def __init__(self, coord: Coord, broker_id: int) -> None:
        self._coord = coord
        self._broker_id = broker_id

    async def read(self, topic_partition: TopicPartition) -> Receipts:
        """None have been written: an empty tuple."""
        path = paths.loss(topic_partition)
        try:
            data, _ = await self._coord.get(path)
        except NoNode:
            return ()
        return decode_receipts(path, data)

    async def epoch(self, topic_partition: TopicPartition) -> int:
        """The leader epoch of the newest receipt, NO_EPOCH if there is none."""
        receipts = await self.read(topic_partition)
        return receipts[-1].leader_epoch if receipts else NO_EPOCH

    async def gave_up(self, topic_partition: TopicPartition, start: int, end: int) -> None:
        """This broker's replica gives up the offsets from `start` on, `end` not included: added to
        the newest receipt. Raises NoNode if there is none."""
        loss = GivenUp(self._broker_id, start, end)

        def added(receipt: LossReceipt) -> LossReceipt:
            if loss in receipt.given_up:
                return receipt
            return replace(receipt, given_up=(*receipt.given_up, loss)[-GIVEN_UP_MAX:])

        await self._change(topic_partition, added)

    async def leads_from(self, topic_partition: TopicPartition, epoch: int, log_end: int) -> None:
        """This broker leads since the unclean election of `epoch`, and its log ended there. Nothing
        is written if the newest receipt is of another epoch."""

        def told(receipt: LossReceipt) -> LossReceipt:
            mine = receipt.leader == self._broker_id and receipt.leader_epoch == epoch
            return replace(receipt, log_end=log_end) if mine else receipt

        await self._change(topic_partition, told)

    async def _change(
        self, topic_partition: TopicPartition, change: Callable[[LossReceipt], LossReceipt]
    ) -> None:
        path = paths.loss(topic_partition)
        created = None
        for attempt in range(ATTEMPTS_MAX):
            found = await topic_nodes.find(self._coord, path)
            receipts = decode_receipts(path, found.data)
            if not receipts or created not in (None, found.stat.czxid):
                raise NoNode(f"{path} has no loss receipt")
            created = found.stat.czxid
            changed = change(receipts[-1])
            if changed == receipts[-1]:
                return
            data = encode_receipts((*receipts[:-1], changed))
            try:
                await topic_nodes.replace(self._coord, found, data)
            except (BadVersion, ConnectionLoss):
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            else:
                return


def _to_json(receipt: LossReceipt) -> dict[str, object]:
    content: dict[str, object] = {
        "leader": receipt.leader,
        "leader_epoch": receipt.leader_epoch,
        "reason": receipt.reason,
        "isr_before": list(receipt.isr_before),
        "eligible_before": list(receipt.eligible_before),
        "replicas": list(receipt.replicas),
        "timestamp": str(receipt.timestamp_ms),
        "given_up": [
            {"replica": each.replica, "from": str(each.start), "to": str(each.end)}
            for each in receipt.given_up
        ],
    }
    if receipt.log_end != NO_OFFSET:
        content["log_end"] = str(receipt.log_end)
    return content


def _from_json(fields: Fields) -> LossReceipt:
    return LossReceipt(
        leader=fields.integer("leader"),
        leader_epoch=fields.integer("leader_epoch"),
        reason=fields.text("reason"),
        isr_before=fields.integers("isr_before"),
        replicas=fields.integers("replicas"),
        timestamp_ms=fields.number_in_text("timestamp"),
        eligible_before=fields.integers("eligible_before", required=False),
        log_end=fields.number_in_text("log_end", default=NO_OFFSET),
        given_up=tuple(
            GivenUp(each.integer("replica"), each.number_in_text("from"), each.number_in_text("to"))
            for each in fields.objects("given_up")
        ),
    )
