"""Loss receipts. Each describes a possible loss of committed records in a partition, to distinguish
a loss by an unclean election from a defect.

The controller writes the receipt in the multi of the unclean election. Followers of the new leader
add the offsets that they truncate. The receipts are deleted with the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.json_nodes import Fields, dump, load_object
from pybroker.coordinator.zookeeper.repeating import repeat_conditional_write
from pybroker.coordinator.zookeeper.schemas import decode_state
from pybroker.errors import ConnectionLoss, NoNode
from pybroker.model import NO_OFFSET, TopicPartition
from pybroker.ports import Coord, SetOp

UNCLEAN_ELECTION: Final = "unclean-election"
"""A replica that may lack committed records was elected, since no other replica could lead."""
POWER_LOSS: Final = "power-loss"
"""The machine of the last replica lost power, or its disk failed. Records that were not on disk are
lost."""
ACCEPTED_LOSS: Final = "accepted-loss"
"""The log directory of the last replica is lost, and the operator has confirmed it."""

RECEIPTS_MAX: Final = 10
"""The number of receipts of a partition that are kept: the newest ones."""
GIVEN_UP_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class TruncatedRange:
    """The offsets from `start` up to, not including, `end` that a replica has truncated."""

    replica: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LossReceipt:
    """One loss of records. `leader` leads from `leader_epoch` on. The replicas in `isr_before` and
    `eligible_before` (eligible replicas outside the ISR, KIP-966) had every committed record.
    `log_end`: NO_OFFSET after an unclean election; the end of the remaining log if a partition's
    only replica lost records."""

    leader: int
    leader_epoch: int
    reason: str
    isr_before: tuple[int, ...]
    replicas: tuple[int, ...]
    timestamp_ms: int
    eligible_before: tuple[int, ...] = ()
    log_end: int = NO_OFFSET
    given_up: tuple[TruncatedRange, ...] = ()


Receipts = tuple[LossReceipt, ...]
"""The receipts of one partition, the newest last."""


def encode_receipts(receipts: Sequence[LossReceipt]) -> bytes:
    """Return the content of the partition's node in ZooKeeper (`paths.loss`), with the newest
    `RECEIPTS_MAX` receipts. Offsets and times are strings."""
    return dump({"version": 1, "receipts": [_to_json(each) for each in receipts[-RECEIPTS_MAX:]]})


def decode_receipts(path: str, data: bytes) -> Receipts:
    """Return one `LossReceipt` for each loss of records that `data` describes. `data` is the
    content of the node `path`. Raises MalformedNode."""
    return tuple(_from_json(each) for each in load_object(path, data).objects("receipts"))


class LossReceipts:
    """Reads from ZooKeeper the loss receipts, which say which committed records may be lost. Adds
    to a loss receipt the offset ranges that this broker's replicas truncate. All methods may raise
    CoordError and MalformedNode."""

    def __init__(self, coord: Coord, broker_id: int) -> None:
        self._coord = coord
        self._broker_id = broker_id

    async def read(self, topic_partition: TopicPartition) -> Receipts:
        """Return the partition's loss receipts: one `LossReceipt` for each recorded loss of
        records, the newest last. The result is empty if the partition has no receipt."""
        path = paths.loss(topic_partition)
        try:
            data, _ = await self._coord.get(path)
        except NoNode:
            return ()
        return decode_receipts(path, data)

    async def newest_receipt(
        self, topic_partition: TopicPartition, *, after: int, up_to: int
    ) -> LossReceipt | None:
        """Of the partition's loss receipts (notes of possible data losses) with a leader epoch
        above `after` and at most `up_to`, return the newest. Raises ConnectionLoss if the ZooKeeper
        server has not applied the election of epoch `up_to` yet."""
        await self._sync_to_epoch(topic_partition, up_to)
        receipts = await self.read(topic_partition)
        return next(
            (each for each in reversed(receipts) if after < each.leader_epoch <= up_to), None
        )

    async def add_truncation(
        self, topic_partition: TopicPartition, leader_epoch: int, start: int, end: int
    ) -> None:
        """Record that this broker's replica truncates the offsets from `start` up to, not
        including, `end`. The record goes into the partition's loss receipt (see the module) for
        `leader_epoch`. Raises NoNode if there is no such receipt."""
        path = paths.loss(topic_partition)
        loss = TruncatedRange(self._broker_id, start, end)
        name = topic_partition.topic
        topic = name, await topic_nodes.stored_id(self._coord, name)

        async def add() -> None:
            stored, stat = await self._coord.get(path)
            receipts = decode_receipts(path, stored)
            numbers = [n for n, each in enumerate(receipts) if each.leader_epoch == leader_epoch]
            if not numbers:
                raise NoNode(
                    f"the node {path} has no loss receipt (an entry about lost records) of the"
                    f" election that began leader epoch {leader_epoch}"
                )
            number = numbers[-1]
            given_up = _with(receipts[number].given_up, loss)
            if given_up != receipts[number].given_up:
                changed = replace(receipts[number], given_up=given_up)
                data = encode_receipts((*receipts[:number], changed, *receipts[number + 1 :]))
                await topic_nodes.apply(self._coord, topic, SetOp(path, data, stat.version))

        await repeat_conditional_write(add)

    async def _sync_to_epoch(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Make sure that later reads return all writes up to the election of this leader epoch.
        Raises ConnectionLoss if the ZooKeeper server lags behind."""
        path = paths.partition_state(topic_partition)
        stored = decode_state(path, (await self._coord.get(path))[0])
        if stored.leader_epoch < leader_epoch:
            await self._coord.sync(path)
            stored = decode_state(path, (await self._coord.get(path))[0])
        if stored.leader_epoch < leader_epoch:
            raise ConnectionLoss(
                f"the ZooKeeper server lags behind: {path} has leader epoch"
                f" {stored.leader_epoch}, expected {leader_epoch} or later"
            )


def _with(given_up: tuple[TruncatedRange, ...], loss: TruncatedRange) -> tuple[TruncatedRange, ...]:
    """Return the truncated ranges with `loss` added. Adjoining or overlapping ranges of one replica
    become one range."""
    parts = [
        each
        for each in given_up
        if each.replica == loss.replica and each.start <= loss.end and loss.start <= each.end
    ]
    if parts:
        start = min(loss.start, *(each.start for each in parts))
        end = max(loss.end, *(each.end for each in parts))
        loss = replace(loss, start=start, end=end)
    if parts == [loss]:
        return given_up
    return (*(each for each in given_up if each not in parts), loss)[-GIVEN_UP_MAX:]


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
            TruncatedRange(
                each.integer("replica"), each.number_in_text("from"), each.number_in_text("to")
            )
            for each in fields.objects("given_up")
        ),
    )
