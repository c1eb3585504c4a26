"""Loss receipts: which records of a partition may be gone, since when, and who gave them up.

The controller writes one in the same multi as the state of an unclean election, and every replica
that follows the new leader adds what it cuts away. So a reader that misses records finds out why,
and a replica can tell a loss that was decided from one that is a defect. The node goes with its
topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.json_nodes import Fields, dump, load_object
from pybroker.coordinator.zookeeper.schemas import decode_state
from pybroker.errors import BadVersion, ConnectionLoss, NoNode
from pybroker.model import NO_OFFSET, TopicPartition
from pybroker.ports import Coord, SetOp

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
    that was committed, and none of them could lead. `log_end`: where the log of an only replica
    ended, NO_OFFSET after an election."""

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

    async def explaining(
        self, topic_partition: TopicPartition, *, after: int, up_to: int
    ) -> LossReceipt | None:
        """The newest receipt of a leader epoch above `after` and not above `up_to`, of all that
        were written when the leader of `up_to` was elected; None if there is none.

        Raises ConnectionLoss if ZooKeeper's member has not heard of the leader epoch `up_to`."""
        await self._hear_of(topic_partition, up_to)
        receipts = await self.read(topic_partition)
        return next(
            (each for each in reversed(receipts) if after < each.leader_epoch <= up_to), None
        )

    async def gave_up(
        self, topic_partition: TopicPartition, leader_epoch: int, start: int, end: int
    ) -> None:
        """This broker's replica gives up the offsets from `start` on, `end` not included: added to
        the receipt of that leader epoch. Raises NoNode if there is none."""
        path = paths.loss(topic_partition)
        loss = GivenUp(self._broker_id, start, end)
        name = topic_partition.topic
        topic = name, await topic_nodes.stored_id(self._coord, name)
        for attempt in range(ATTEMPTS_MAX):
            data, stat = await self._coord.get(path)
            receipts = decode_receipts(path, data)
            numbers = [n for n, each in enumerate(receipts) if each.leader_epoch == leader_epoch]
            if not numbers:
                raise NoNode(f"{path} has no loss receipt of leader epoch {leader_epoch}")
            number = numbers[-1]
            given_up = _with(receipts[number].given_up, loss)
            if given_up == receipts[number].given_up:
                return
            changed = replace(receipts[number], given_up=given_up)
            data = encode_receipts((*receipts[:number], changed, *receipts[number + 1 :]))
            try:
                await topic_nodes.apply(self._coord, topic, SetOp(path, data, stat.version))
            except (BadVersion, ConnectionLoss):
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            else:
                return

    async def _hear_of(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """See all that was written with that leader epoch, and before: a member of ZooKeeper may
        lag behind the controller that has told of it."""
        path = paths.partition_state(topic_partition)
        stored = decode_state(path, (await self._coord.get(path))[0])
        if stored.leader_epoch < leader_epoch:
            await self._coord.sync(path)
            stored = decode_state(path, (await self._coord.get(path))[0])
        if stored.leader_epoch < leader_epoch:
            raise ConnectionLoss(
                f"{path} is of leader epoch {stored.leader_epoch}, expected {leader_epoch} or later"
            )


def _with(given_up: tuple[GivenUp, ...], loss: GivenUp) -> tuple[GivenUp, ...]:
    """A replica cuts its log step by step: its ranges that touch each other are one."""
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
            GivenUp(each.integer("replica"), each.number_in_text("from"), each.number_in_text("to"))
            for each in fields.objects("given_up")
        ),
    )
