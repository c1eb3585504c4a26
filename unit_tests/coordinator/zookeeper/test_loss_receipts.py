"""Tests of loss receipts: their content, and concurrent additions by several replicas."""

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
    LossReceipt,
    LossReceipts,
    TruncatedRange,
    decode_receipts,
    encode_receipts,
)
from pybroker.coordinator.zookeeper.registry import create_parents, ensure
from pybroker.coordinator.zookeeper.schemas import TopicAssignment, encode_state, encode_topic
from pybroker.errors import ConnectionLoss, MalformedNode, NoNode
from pybroker.model import NO_EPOCH, PartitionState, TopicPartition
from pybroker.ports import CoordOp, CreateOp, OpResult
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.replication.recreated_topic import RecreatedTopic
from unit_tests.replication.vocabulary import TOPIC_ID

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
    await create_parents(coord)
    await coord.create(paths.losses("orders"))
    await coord.create(
        paths.topic("orders"), encode_topic(TopicAssignment({0: (1, 2, 3)}, TOPIC_ID))
    )
    await coord.create(paths.topic_id(TOPIC_ID))
    yield coord
    await coord.close()


async def store_state(coord: MemoryCoord, leader_epoch: int) -> None:
    await ensure(coord, paths.partition_state(T0))
    state = PartitionState(2, leader_epoch, (2,), 1)
    await coord.set(paths.partition_state(T0), encode_state(state))


def test_a_receipt_reads_as_it_was_written() -> None:
    full = replace(RECEIPT, log_end=2**40, given_up=(TruncatedRange(1, 7, 2**41),))
    assert decode_receipts("/x", encode_receipts([RECEIPT, full])) == (RECEIPT, full)
    assert encode_receipts([RECEIPT]) == (
        b'{"version":1,"receipts":[{"leader":2,"leader_epoch":5,"reason":"unclean-election",'
        b'"isr_before":[1],"eligible_before":[3],"replicas":[1,2,3],'
        b'"timestamp":"1700000000000","given_up":[]}]}'
    )


@pytest.mark.parametrize("data", [b"", b"[]", b'{"receipts":[1]}', b'{"receipts":[{"leader":1}]}'])
def test_other_content_is_a_malformed_receipt(data: bytes) -> None:
    with pytest.raises(MalformedNode):
        decode_receipts("/x", data)


def test_the_newest_receipts_are_kept() -> None:
    many = [replace(RECEIPT, leader_epoch=epoch) for epoch in range(3 * RECEIPTS_MAX)]
    assert decode_receipts("/x", encode_receipts(many)) == tuple(many[-RECEIPTS_MAX:])


async def test_a_truncation_without_a_receipt_is_refused(coord: MemoryCoord) -> None:
    await store_state(coord, 9)
    receipts = LossReceipts(coord, 1)
    assert await receipts.newest_receipt(T0, after=NO_EPOCH, up_to=5) is None
    with pytest.raises(NoNode):
        await receipts.add_truncation(T0, 5, 3, 9)


async def test_replicas_add_their_truncated_offsets_to_the_receipt(
    coord: MemoryCoord,
) -> None:
    older = replace(RECEIPT, leader_epoch=3)
    await coord.create(paths.loss(T0), encode_receipts([older, RECEIPT]))
    first, third = LossReceipts(coord, 1), LossReceipts(coord, 3)
    await first.add_truncation(T0, 5, 7, 9)
    await third.add_truncation(T0, 5, 7, 8)
    await first.add_truncation(T0, 5, 7, 9)
    await third.add_truncation(T0, 3, 1, 2)
    expected = replace(RECEIPT, given_up=(TruncatedRange(1, 7, 9), TruncatedRange(3, 7, 8)))
    assert await first.read(T0) == (replace(older, given_up=(TruncatedRange(3, 1, 2),)), expected)
    with pytest.raises(NoNode, match="leader epoch 4"):
        await first.add_truncation(T0, 4, 7, 9)
    for number in range(2 * GIVEN_UP_MAX):
        await first.add_truncation(T0, 5, 10 + 2 * number, 11 + 2 * number)
    assert len((await first.read(T0))[-1].given_up) == GIVEN_UP_MAX


async def test_a_log_that_is_cut_step_by_step_is_one_range(coord: MemoryCoord) -> None:
    """The log is truncated once for each leader epoch, and the number of stored ranges is
    limited."""
    await coord.create(paths.loss(T0), encode_receipts([RECEIPT]))
    receipts = LossReceipts(coord, 1)
    await LossReceipts(coord, 3).add_truncation(T0, 5, 60, 70)
    for start in reversed(range(GIVEN_UP_MAX)):
        await receipts.add_truncation(T0, 5, start, start + 1)
    await receipts.add_truncation(T0, 5, 10, 20)
    (found,) = await receipts.read(T0)
    assert found.given_up == (TruncatedRange(3, 60, 70), TruncatedRange(1, 0, GIVEN_UP_MAX))


@pytest.mark.parametrize(
    ("after", "up_to", "epoch"), [(4, 5, 5), (3, 4, None), (2, 4, 3), (2, 9, 5), (5, 9, None)]
)
async def test_the_newest_election_between_two_leader_epochs_explains_a_loss(
    coord: MemoryCoord, after: int, up_to: int, epoch: int | None
) -> None:
    await store_state(coord, 9)
    await coord.create(paths.loss(T0), encode_receipts([replace(RECEIPT, leader_epoch=3), RECEIPT]))
    found = await LossReceipts(coord, 1).newest_receipt(T0, after=after, up_to=up_to)
    assert (found and found.leader_epoch) == epoch


async def test_a_lagging_zookeeper_server_does_not_hide_a_receipt(coord: MemoryCoord) -> None:
    """The controller sends a leader epoch, and the broker's ZooKeeper server may lag behind the
    election."""
    await store_state(coord, 9)
    receipts = LossReceipts(coord, 1)
    with pytest.raises(ConnectionLoss, match="expected 10 or later"):
        await receipts.newest_receipt(T0, after=4, up_to=10)

    class Lagging(MemoryCoord):
        """A client whose server applies the election only at a sync."""

        async def sync(self, path: str = "/") -> None:
            await store_state(self, 10)
            await self.create(paths.loss(T0), encode_receipts([replace(RECEIPT, leader_epoch=10)]))
            await super().sync(path)

    lagging = Lagging(coord._tree)
    await lagging.start()
    found = await LossReceipts(lagging, 1).newest_receipt(T0, after=4, up_to=10)
    assert found is not None and found.leader_epoch == 10
    await lagging.close()


async def test_an_entry_is_added_once_even_if_a_reply_is_lost(coord: MemoryCoord) -> None:
    await coord.create(paths.loss(T0), encode_receipts([RECEIPT]))

    class Unlucky(MemoryCoord):
        """A client that loses the reply of its first write."""

        lost = False

        async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
            if not self.lost:
                self.lost = True
                self.lose_reply(applied=True)
            return await super().multi(ops)

    unlucky = Unlucky(coord._tree)
    await unlucky.start()
    await LossReceipts(unlucky, 1).add_truncation(T0, 5, 7, 9)
    assert unlucky.lost
    assert (await LossReceipts(coord, 3).read(T0))[-1].given_up == (TruncatedRange(1, 7, 9),)
    await unlucky.close()


async def test_truncated_offsets_of_a_deleted_topic_are_not_added_to_its_recreation(
    coord: MemoryCoord,
) -> None:
    await coord.create(paths.loss(T0), encode_receipts([RECEIPT]))
    of_the_next = CreateOp(paths.loss(T0), encode_receipts([RECEIPT]))
    recreated_topic = RecreatedTopic(coord._tree, T0, CreateOp(paths.losses("orders")), of_the_next)
    recreated_topic.recreate_before_next_write_of(coord)
    with pytest.raises(NoNode):
        await LossReceipts(coord, 1).add_truncation(T0, 5, 7, 9)
    assert await LossReceipts(coord, 1).read(T0) == (RECEIPT,)
