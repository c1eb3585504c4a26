"""What is written down of lost records, and that nobody's entry is overwritten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.loss_receipts import (
    GIVEN_UP_MAX,
    RECEIPTS_MAX,
    UNCLEAN_ELECTION,
    GivenUp,
    LossReceipt,
    LossReceipts,
    decode_receipts,
    encode_receipts,
)
from pybroker.coordinator.zookeeper.registry import create_parents
from pybroker.coordinator.zookeeper.schemas import TopicAssignment, encode_topic
from pybroker.errors import MalformedNode, NoNode
from pybroker.model import NO_EPOCH, NO_OFFSET, TopicPartition
from pybroker.ports import CoordOp, CreateOp, OpResult
from pybroker.testing.coord import MemoryCoord, MemoryTree
from unit_tests.replication.next_topic import NextTopic

T0 = TopicPartition("orders", 0)
RECEIPT = LossReceipt(
    leader=2,
    leader_epoch=5,
    reason=UNCLEAN_ELECTION,
    isr_before=(1,),
    eligible_before=(3,),
    replicas=(1, 2, 3),
    timestamp_ms=1_700_000_000_000,
)


@pytest.fixture
async def coord() -> AsyncIterator[MemoryCoord]:
    coord = MemoryCoord(MemoryTree(ManualClock()))
    await coord.start()
    for path in ("/pybroker", paths.LOSSES, paths.losses("orders")):
        await coord.create(path)
    yield coord
    await coord.close()


def test_a_receipt_reads_as_it_was_written() -> None:
    full = replace(RECEIPT, log_end=2**40, given_up=(GivenUp(1, 7, 2**41),))
    assert decode_receipts("/x", encode_receipts([RECEIPT, full])) == (RECEIPT, full)
    assert encode_receipts([RECEIPT]) == (
        b'{"version":1,"receipts":[{"leader":2,"leader_epoch":5,"reason":"unclean-election",'
        b'"isr_before":[1],"eligible_before":[3],"replicas":[1,2,3],'
        b'"timestamp":"1700000000000","given_up":[]}]}'
    )


@pytest.mark.parametrize("data", [b"", b"[]", b'{"receipts":[1]}', b'{"receipts":[{"leader":1}]}'])
def test_what_is_no_receipt_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedNode):
        decode_receipts("/x", data)


def test_the_newest_receipts_are_kept() -> None:
    many = [replace(RECEIPT, leader_epoch=epoch) for epoch in range(3 * RECEIPTS_MAX)]
    assert decode_receipts("/x", encode_receipts(many)) == tuple(many[-RECEIPTS_MAX:])


async def test_without_a_receipt_nothing_may_be_given_up(coord: MemoryCoord) -> None:
    receipts = LossReceipts(coord, 1)
    assert await receipts.epoch(T0) == NO_EPOCH
    with pytest.raises(NoNode):
        await receipts.gave_up(T0, 3, 9)


async def test_replicas_add_what_they_gave_up_to_the_newest(coord: MemoryCoord) -> None:
    older = replace(RECEIPT, leader_epoch=3)
    await coord.create(paths.loss(T0), encode_receipts([older, RECEIPT]))
    first, third = LossReceipts(coord, 1), LossReceipts(coord, 3)
    assert await first.epoch(T0) == 5
    await first.gave_up(T0, 7, 9)
    await third.gave_up(T0, 7, 8)
    await first.gave_up(T0, 7, 9)
    expected = replace(RECEIPT, given_up=(GivenUp(1, 7, 9), GivenUp(3, 7, 8)))
    assert await first.read(T0) == (older, expected)
    for offset in range(2 * GIVEN_UP_MAX):
        await first.gave_up(T0, offset, offset + 1)
    assert len((await first.read(T0))[-1].given_up) == GIVEN_UP_MAX


async def test_an_entry_is_added_once_whatever_the_connection_does(coord: MemoryCoord) -> None:
    await coord.create(paths.loss(T0), encode_receipts([RECEIPT]))

    class Unlucky(MemoryCoord):
        """Loses the reply of its first write."""

        lost = False

        async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
            if not self.lost:
                self.lost = True
                self.lose_reply(applied=True)
            return await super().multi(ops)

    unlucky = Unlucky(coord._tree)
    await unlucky.start()
    await LossReceipts(unlucky, 1).gave_up(T0, 7, 9)
    assert unlucky.lost
    assert (await LossReceipts(coord, 3).read(T0))[-1].given_up == (GivenUp(1, 7, 9),)
    await unlucky.close()


async def test_what_was_given_up_of_one_topic_is_not_added_for_the_next_of_that_name(
    coord: MemoryCoord,
) -> None:
    await create_parents(coord)
    await coord.create(paths.topic("orders"), encode_topic(TopicAssignment({0: (1,)})))
    await coord.create(paths.loss(T0), encode_receipts([RECEIPT]))
    of_the_next = CreateOp(paths.loss(T0), encode_receipts([RECEIPT]))
    next_topic = NextTopic(coord._tree, T0, CreateOp(paths.losses("orders")), of_the_next)
    next_topic.comes_before_the_next_write_of(coord)
    with pytest.raises(NoNode):
        await LossReceipts(coord, 1).gave_up(T0, 7, 9)
    assert await LossReceipts(coord, 1).read(T0) == (RECEIPT,)


async def test_only_who_was_elected_says_where_its_log_ended(coord: MemoryCoord) -> None:
    await coord.create(paths.loss(T0), encode_receipts([RECEIPT]))
    await LossReceipts(coord, 3).leads_from(T0, 5, 42)
    await LossReceipts(coord, 2).leads_from(T0, 6, 43)
    assert (await LossReceipts(coord, 1).read(T0))[-1].log_end == NO_OFFSET
    await LossReceipts(coord, 2).leads_from(T0, 5, 41)
    assert (await LossReceipts(coord, 1).read(T0))[-1].log_end == 41
