"""Tests of the accumulator: records are collected into batches, which have an order and use
memory."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.client.accumulator import Accumulator, ProducerBatch
from pybroker.client.budget import MemoryBudget
from pybroker.client.sequences import SEQUENCE_COUNT, SequenceState
from pybroker.model import TopicPartition
from pybroker.records.batch import HEADER_SIZE, TimestampType
from pybroker.records.loops import read_records
from pybroker.records.record import Record
from unit_tests.idle_loop import idle

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
SIZE = 8
"""The size of a record with a value of one byte, in bytes."""


class Gatherer:
    """An accumulator with a clock that the test sets. A test identifies records by their values."""

    def __init__(
        self, *, batch_size: int = 10_000, linger_s: float = 0.0, idempotent: bool = True
    ) -> None:
        self.inner = Accumulator(
            batch_size=batch_size, linger_s=linger_s, idempotent=idempotent, in_flight_max=5
        )
        self.now = 100.0

    def add(self, *values: bytes, to: TopicPartition = T0) -> list[str]:
        """Append records, and return in a word what each did to the batches."""
        queue = self.inner.queue(to)
        results = [self.inner.append(queue, 0, None, value, (), self.now) for value in values]
        return [
            ("filled" if each.batch.count == each.index + 1 and each.filled else "")
            or ("began" if each.began else "joined")
            for each in results
        ]

    def ready(self) -> list[TopicPartition]:
        return [queue.topic_partition for queue in self.inner.ready(self.now)]

    def take(self, key: TopicPartition = T0) -> list[bytes | None]:
        """Take the first batch, and assign sequence numbers to it, as the sender does."""
        queue = self.inner.queues[key]
        batch = self.inner.take(queue)
        if not batch.has_sequence:
            batch.base_sequence = queue.sequences.assign(batch.count)
        batch.attempts += 1
        return values_of(batch)

    def give_back(self, *places: int) -> None:
        """Put the batches in flight with these indexes back into the queue."""
        queue = self.inner.queues[T0]
        for batch in [queue.in_flight[place] for place in places]:
            queue.put_back(batch)

    def waiting(self) -> list[list[bytes | None]]:
        return [values_of(batch) for batch in self.inner.queues[T0].waiting]


def records_of(batch: ProducerBatch) -> list[Record]:
    kind, data = TimestampType.CREATE_TIME, bytes(batch.records.encoded())
    return read_records(data, batch.count, 0, batch.count - 1, 0, None, kind, Record)


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in records_of(batch)]


async def test_a_batch_closes_when_the_next_record_does_not_fit() -> None:
    gatherer = Gatherer(batch_size=HEADER_SIZE + 2 * SIZE, linger_s=10)
    assert [gatherer.add(value)[0] for value in (b"a", b"b", b"c")] == ["began", "filled", "began"]
    assert gatherer.waiting() == [[b"a", b"b"], [b"c"]]


async def test_a_record_that_leaves_room_for_its_like_only_joins() -> None:
    gatherer = Gatherer(batch_size=HEADER_SIZE + 3 * SIZE)
    assert [gatherer.add(value)[0] for value in (b"a", b"b")] == ["began", "joined"]


async def test_a_record_larger_than_a_batch_travels_alone() -> None:
    gatherer = Gatherer(batch_size=10)
    assert [gatherer.add(value)[0] for value in (b"a", b"b")] == ["filled"] * 2
    assert gatherer.waiting() == [[b"a"], [b"b"]]


async def test_a_record_that_cannot_be_encoded_begins_no_batch() -> None:
    gatherer = Gatherer()
    with pytest.raises(ValueError, match="timestamp"):
        gatherer.inner.append(gatherer.inner.queue(T0), -2, None, b"", (), gatherer.now)
    assert not gatherer.inner.outstanding
    assert gatherer.add(b"a") == ["began"]


async def test_a_batch_lingers_unless_it_is_full_or_flushed() -> None:
    gatherer = Gatherer(batch_size=HEADER_SIZE + 2 * SIZE, linger_s=5)
    gatherer.add(b"a")
    assert gatherer.ready() == []
    assert gatherer.inner.next_due(gatherer.now) == 105.0
    gatherer.inner.flushing = 1
    assert gatherer.ready() == [T0]
    gatherer.inner.flushing = 0
    gatherer.add(b"b")
    assert gatherer.ready() == [T0]
    gatherer.add(b"x", to=T1)
    gatherer.now = 105.0
    assert gatherer.ready() == [T0, T1]


async def test_the_second_batch_waits_until_the_first_is_confirmed() -> None:
    """A broker that does not know the producer would accept the second batch without the first."""
    gatherer = Gatherer(batch_size=10)
    gatherer.add(b"a", b"b")
    assert gatherer.take() == [b"a"]
    assert gatherer.ready() == []
    gatherer.inner.queues[T0].sequences.acknowledge(0, 1)
    assert gatherer.ready() == [T0]


async def test_no_batch_goes_that_makes_the_broker_forget_an_unanswered_one() -> None:
    """The first batch was sent to a leader that does not answer. The next leader recognises the
    batch only if it is one of the producer's last five."""
    gatherer = Gatherer(batch_size=10)
    gatherer.add(*(b"%d" % number for number in range(7)))
    queue = gatherer.inner.queues[T0]
    queue.sequences.acknowledge(queue.sequences.assign(1), 1)
    in_flight = queue.in_flight
    for _ in range(4):
        gatherer.take()
        del in_flight[1:]
    assert gatherer.ready() == [T0]
    assert gatherer.take() == [b"4"]
    del in_flight[1:]
    assert gatherer.ready() == []
    gatherer.give_back(0)
    assert gatherer.ready() == [T0]
    assert gatherer.take() == [b"0"]
    assert gatherer.ready() == []
    in_flight.clear()
    assert gatherer.take() == [b"5"]
    assert gatherer.ready() == [T0]


async def test_a_taken_batch_takes_no_more_records() -> None:
    gatherer = Gatherer()
    gatherer.add(b"a")
    assert gatherer.take() == [b"a"]
    gatherer.give_back(0)
    gatherer.add(b"b")
    assert gatherer.waiting() == [[b"a"], [b"b"]]


async def test_batches_to_be_sent_again_stand_in_their_old_order() -> None:
    gatherer = Gatherer(batch_size=0)
    gatherer.add(b"a", b"b", b"c", b"d")
    for _ in range(3):
        gatherer.take()
    gatherer.give_back(2, 0, 1)
    assert gatherer.waiting() == [[b"a"], [b"b"], [b"c"], [b"d"]]


async def test_a_batch_is_not_sent_again_before_those_in_front_of_it() -> None:
    gatherer = Gatherer(batch_size=0)
    gatherer.add(b"a", b"b", b"c")
    gatherer.take()
    gatherer.take()
    gatherer.give_back(1)
    assert gatherer.ready() == []
    gatherer.give_back(0)
    assert gatherer.ready() == [T0]


@pytest.mark.parametrize(("idempotent", "limit"), [(True, 5), (False, 1)])
async def test_batches_in_flight_are_limited(idempotent: bool, limit: int) -> None:
    gatherer = Gatherer(batch_size=0, idempotent=idempotent)
    gatherer.add(*[b"x"] * 9)
    sequences = gatherer.inner.queues[T0].sequences
    sequences.acknowledge(sequences.assign(1), 1)
    taken = 0
    while gatherer.ready():
        gatherer.take()
        taken += 1
    assert taken == limit


async def test_behind_a_gap_only_batches_with_sequences_are_sent() -> None:
    gatherer = Gatherer(batch_size=0)
    gatherer.add(b"a", b"b")
    gatherer.take()
    gatherer.inner.queues[T0].sequences.unresolved = True
    assert gatherer.ready() == []
    gatherer.give_back(0)
    assert gatherer.ready() == [T0]
    gatherer.inner.queues[T0].sequences.restarting = True
    assert gatherer.ready() == []


async def test_halves_of_a_split_batch_stand_where_it_stood() -> None:
    gatherer = Gatherer(batch_size=HEADER_SIZE + 4 * SIZE)
    gatherer.add(*[bytes([65 + index]) for index in range(8)])
    gatherer.take()
    gatherer.take()
    queue = gatherer.inner.queues[T0]
    gatherer.inner.split(queue, queue.in_flight[0], records_of(queue.in_flight[0]))
    gatherer.give_back(0)
    assert gatherer.waiting() == [[b"A", b"B"], [b"C", b"D"], [b"E", b"F", b"G", b"H"]]


# Sequences


def test_sequences_go_on_with_0_after_the_last_number() -> None:
    state = SequenceState()
    state.next_sequence = SEQUENCE_COUNT - 2
    assert state.assign(3) == SEQUENCE_COUNT - 2
    assert state.next_sequence == 1
    state.acknowledge(SEQUENCE_COUNT - 2, 3)
    assert state.last_acknowledged == 0
    assert state.is_next(1)
    assert not state.has_hole()


def test_sequences_that_were_never_acknowledged_are_a_gap() -> None:
    state = SequenceState()
    assert not state.has_hole()
    state.assign(2)
    assert state.has_hole()
    state.acknowledge(0, 2)
    assert not state.has_hole()
    state.start(1, 1)
    assert state.is_next(0)


# Memory


async def test_memory_is_given_in_order_of_asking() -> None:
    budget = MemoryBudget(100)
    assert budget.try_take(80)
    order: list[int] = []

    async def take(size: int) -> None:
        await budget.take(size, timeout_s=5)
        order.append(size)

    waiting = [asyncio.ensure_future(take(size)) for size in (60, 10)]
    await idle()
    assert not budget.try_take(10), "no request overtakes an earlier one"
    budget.give_back(80)
    await asyncio.gather(*waiting)
    assert order == [60, 10]
    assert budget.used == 70


async def test_a_cancelled_wait_for_memory_takes_nothing_and_blocks_no_other() -> None:
    budget = MemoryBudget(100)
    assert budget.try_take(90)
    with pytest.raises(TimeoutError):
        await budget.take(50, timeout_s=0.01)
    assert budget.used == 90
    assert budget.try_take(10)


@pytest.mark.parametrize("base", [0, SEQUENCE_COUNT - 3])
def test_an_older_answer_that_comes_late_does_not_lower_the_acknowledged_sequence(
    base: int,
) -> None:
    """An earlier leader may answer after the next leader has accepted later batches."""
    state = SequenceState()
    state.start(9, 0)
    state.next_sequence = base
    first, second = state.assign(2), state.assign(3)
    state.acknowledge(second, 3)
    state.acknowledge(first, 2)
    assert not state.has_hole()
    assert state.is_next(state.next_sequence)
