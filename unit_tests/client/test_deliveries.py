"""Tests of deliveries: the outcome of a batch reaches each of its records."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.client.accumulator import Accumulator, ProducerBatch
from pybroker.client.deliveries import Deliveries, Delivery, Failed, RecordMetadata, Run, Stored
from pybroker.client.errors import DeliveryFailed
from pybroker.model import TopicPartition
from pybroker.records.record import Record
from unit_tests.idle_loop import loop_turns

PLACE = TopicPartition("t", 1)
TIMESTAMP = 1_700_000_000_000


def batch_of(count: int) -> ProducerBatch:
    batch = ProducerBatch(PLACE, (0,), created=0.0)
    for number in range(count):
        batch.records.append(TIMESTAMP, None, b"%d" % number, (), 1_000)
    batch.update_memory()
    return batch


def deliveries_of(batch: ProducerBatch) -> list[Delivery]:
    return [Delivery(batch, index, TIMESTAMP) for index in range(batch.count)]


async def test_each_record_has_its_offset_and_the_producers_timestamp() -> None:
    batch = batch_of(3)
    deliveries = deliveries_of(batch)
    waiting = asyncio.gather(*deliveries)
    await loop_turns(1)
    assert not any(delivery.done() for delivery in deliveries)
    batch.settle(Stored(70, -1))
    assert await waiting == [RecordMetadata("t", 1, 70 + n, TIMESTAMP) for n in range(3)]
    assert [await delivery for delivery in deliveries] == await waiting


async def test_the_timestamp_of_the_broker_and_an_unknown_offset_are_passed_on() -> None:
    batch = batch_of(2)
    batch.settle(Stored(-1, TIMESTAMP + 9))
    assert await deliveries_of(batch)[1] == RecordMetadata("t", 1, -1, TIMESTAMP + 9)


async def test_a_failure_is_raised_at_every_look_with_its_cause() -> None:
    batch = batch_of(1)
    (delivery,) = deliveries_of(batch)
    cause = OSError("lost")
    batch.settle(Failed("no leader", definite=False, cause=cause))
    for _ in range(2):
        with pytest.raises(DeliveryFailed, match="no leader") as caught:
            await delivery
        assert caught.value.__cause__ is cause
        assert not caught.value.definite
    assert isinstance(delivery.exception(), DeliveryFailed)


async def test_only_the_first_outcome_counts() -> None:
    batch = batch_of(1)
    batch.settle(Failed("expired", definite=False, cause=None))
    batch.settle(Stored(7, -1))
    assert deliveries_of(batch)[0].exception() is not None


async def test_an_outcome_that_is_not_known_is_no_result() -> None:
    (delivery,) = deliveries_of(batch_of(1))
    for look in (delivery.result, delivery.exception):
        with pytest.raises(asyncio.InvalidStateError):
            look()


async def test_a_cancelled_task_takes_no_outcome_from_others() -> None:
    batch = batch_of(1)
    (delivery,) = deliveries_of(batch)
    cancelled, other = (asyncio.ensure_future(delivery) for _ in range(2))
    await loop_turns(1)
    cancelled.cancel()
    await loop_turns(1)
    batch.settle(Stored(5, -1))
    assert (await other).offset == 5
    assert cancelled.cancelled()
    assert delivery.result().offset == 5


async def test_callbacks_are_called_once_with_the_delivery() -> None:
    batch = batch_of(2)
    seen: list[tuple[str, int]] = []
    first, second = deliveries_of(batch)
    first.add_done_callback(lambda done: seen.append(("early", done.result().offset)))
    second.add_done_callback(lambda done: seen.append(("other", done.result().offset)))
    batch.settle(Stored(5, -1))
    assert seen == [], "callbacks run in a later turn of the event loop"
    first.add_done_callback(lambda done: seen.append(("late", done.result().offset)))
    await loop_turns(1)
    assert seen == [("early", 5), ("other", 6), ("late", 5)]


async def test_deliveries_follow_the_halves_of_a_split_batch() -> None:
    """The batch is split twice: its records are then in three batches."""
    accumulator = Accumulator(batch_size=1_000, linger_s=0, idempotent=True, in_flight_max=5)
    queue = accumulator.queue(PLACE)
    batch = batch_of(5)
    accumulator.begin(queue, batch)
    deliveries = deliveries_of(batch)
    waiting = [asyncio.ensure_future(delivery) for delivery in deliveries]
    await loop_turns(1)

    def split(target: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
        accumulator.take(queue)
        records = [Record(n, TIMESTAMP, None, b"%d" % n) for n in range(target.count)]
        accumulator.split(queue, target, records)
        assert target.halves is not None
        return target.halves

    first, rest = split(batch)
    accumulator.take(queue)
    second, third = split(rest)
    assert (first.count, second.count, third.count) == (2, 1, 2)
    first.settle(Stored(10, -1))
    third.settle(Stored(20, -1))
    await loop_turns(2)
    assert [each.done() for each in waiting] == [True, True, False, True, True]
    assert [each.done() for each in deliveries] == [True, True, False, True, True]
    assert not batch.settled
    second.settle(Failed("refused", definite=True, cause=None))
    assert batch.settled
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[2], DeliveryFailed)
    offsets = [each.offset for each in outcomes if isinstance(each, RecordMetadata)]
    assert offsets == [10, 11, 20, 21]


async def test_deliveries_of_many_records_are_in_the_order_of_the_call() -> None:
    """Records 0, 2 and 3 went to one partition, in two batches, and record 1 to another."""
    one, two, other = batch_of(3), batch_of(1), batch_of(1)
    runs = {0: [Run(one, 1, 2), Run(two, 0, 1)], 4: [Run(other, 0, 1)]}
    many = Deliveries(TIMESTAMP, [0, 4, 0, 0], runs)
    waiting = asyncio.ensure_future(many)
    await loop_turns(1)
    one.settle(Stored(10, -1))
    other.settle(Stored(30, -1))
    await loop_turns(2)
    assert not waiting.done()
    two.settle(Stored(20, -1))
    assert [each.offset for each in await waiting] == [11, 30, 12, 20]
    assert (len(many), many[3].result().offset, len(many[1:])) == (4, 20, 3)


async def test_a_failure_among_many_is_raised_after_all_have_an_outcome() -> None:
    one, two = batch_of(1), batch_of(1)
    many = Deliveries(TIMESTAMP, [0, 1], {0: [Run(one, 0, 1)], 1: [Run(two, 0, 1)]})
    waiting = asyncio.ensure_future(many)
    one.settle(Failed("refused", definite=True, cause=None))
    await loop_turns(2)
    assert not waiting.done()
    two.settle(Stored(1, -1))
    with pytest.raises(DeliveryFailed, match="refused"):
        await waiting
