"""Tests of ranges with counted records: the error if the log has other records, and the errors that
are reported instead of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pytest

from pybroker.client.range_reader import PartitionRange, RangeFault, RangeReader
from pybroker.client.ranges.counts import Difference, Tally
from pybroker.client.ranges.model import Counted
from pybroker.records.batch import read_header, seal
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import AbortedTransaction
from pybroker.wire.schema import Message
from unit_tests.client.compaction import compact
from unit_tests.client.fake_broker import FakeBroker, Partition
from unit_tests.client.held_logs import batch, holding, holding_transactions
from unit_tests.client.ranges.readings import (
    IMPATIENT,
    NEW,
    OLD,
    QUICK,
    Reading,
    failure,
    numbers,
    read_now,
)


def counted(log: Partition, *edges: int) -> tuple[Counted, ...]:
    """Count the log's records between these offsets; the first is 0."""
    found: list[Counted] = []
    for beyond in edges:
        first, tally = found[-1].beyond if found else 0, Tally()
        for data in log.batches:
            tally.add(read_header(data), data, first, beyond)
        found.append(Counted(first, beyond, *tally.take()))
    return tuple(found)


class Held:
    """A topic of ten batches of five records, counted in stretches of 20, 20 and 10 records. Each
    answer has two batches."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.log = broker.partition()
        broker.topic_ids["t"] = OLD
        holding(self.log, *(batch(*numbers(first, first + 5)) for first in range(0, 50, 5)))
        self.log.fetch_limit = 2 * len(self.log.batches[0])
        counts = counted(self.log, 20, 40, 50)
        self.range = PartitionRange("t", 0, 0, 50, str(OLD), 7, 0, counts)

    def lose(self, offsets: Collection[int]) -> None:
        compact(self.log, lambda offset: offset not in offsets)

    async def read(self, *, fail_on_data_loss: bool = True) -> Reading:
        return await asyncio.to_thread(
            read_now, self.broker.address, self.range, fail_on_data_loss=fail_on_data_loss
        )

    def after_answer(self, number: int, change: Callable[[], None]) -> None:
        """Call `change` after that number of Fetch answers."""
        plain, asked = self.broker.handlers[ApiKey.FETCH], [0]

        async def fetch(request: Message) -> Message:
            answer = plain(request)
            result = answer if isinstance(answer, Message) else await answer
            asked[0] += 1
            if asked[0] == number:
                change()
            return result

        self.broker.handlers[ApiKey.FETCH] = fetch

    def before_answer(self, number: int, change: object) -> None:
        """Call `change` before the Fetch with that number is answered."""
        plain, asked = self.broker.handlers[ApiKey.FETCH], [0]

        def fetch(request: Message) -> Message | Awaitable[Message]:
            asked[0] += 1
            if asked[0] == number:
                assert callable(change)
                change()
            return plain(request)

        self.broker.handlers[ApiKey.FETCH] = fetch


async def test_counted_records_are_found_in_every_reading() -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        for _ in range(2):
            found = await held.read()
            assert (found.failed, found.values) == (None, numbers(0, 50))
        holding(held.log, batch(b"more"))
        assert (await held.read()).failed is None
        held.lose({3, 44})
        for start, end in [
            (20, 40),
            (7, 44),
            (4, 43),
        ]:  # a part cut inside a stretch has fewer counts
            part = held.range.part(start, end)
            found = await asyncio.to_thread(read_now, broker.address, part)
            assert (found.failed, found.values) == (None, numbers(start, end))


@pytest.mark.parametrize(
    ("gone", "stretch", "now"),
    [
        ({7}, (0, 20), 19),
        ({20}, (20, 40), 19),
        (range(40, 45), (40, 50), 5),
        (range(20, 40), (20, 40), 0),
        (range(40, 50), (40, 50), 0),
        (range(50), (0, 20), 0),
        ({19, 40, 41}, (0, 20), 19),
    ],
)
async def test_a_record_that_compaction_took_ends_the_reading(
    gone: Collection[int], stretch: tuple[int, int], now: int
) -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        held.lose(gone)
        found = await held.read()
        failed = failure(found)
        first, beyond = stretch
        assert (failed.reason, failed.offset) == (RangeFault.COMPACTED, first)
        assert str(failed).startswith(
            f"t-0@{first}: compacted: {beyond - first} records were counted from {first} to"
            f" {beyond} when the snapshot was taken, {now} are there now: either take a new"
            " snapshot,"
        )
        assert "with min.compaction.lag.ms so high that no record is compacted" in str(failed)
        assert str(failed).endswith("read the records that are left (failOnDataLoss=false)")
        assert found.offsets == [offset for offset in found.offsets if offset < beyond]


async def test_without_fail_on_data_loss_reading_continues_and_reports_differences() -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        gone = {3, 4, *range(40, 50)}
        held.lose(gone)

        def work() -> tuple[list[int], list[Difference], list[tuple[int, int]]]:
            options = {"bootstrap.servers": broker.address, **QUICK}
            with RangeReader(options, fail_on_data_loss=False, patience=IMPATIENT) as reader:
                for _ in range(2):  # the second time as the first
                    seen = [header.base_offset for header, _ in reader.batches(held.range)]
                return seen, reader.compacted, reader.lost

        seen, different, lost = await asyncio.to_thread(work)
        assert seen == list(range(0, 40, 5))
        whole, _, end = held.range.counts
        assert different == [Difference(whole, 18), Difference(end, 0)]
        assert lost == []
        found = await held.read(fail_on_data_loss=False)
        assert found.values == [value for value in numbers(0, 50) if int(value) not in gone]


async def test_another_replica_may_hold_more_or_others() -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        whole = list(held.log.batches)
        held.lose({3, 4})
        held.range = PartitionRange("t", 0, 0, 50, str(OLD), 7, 0, counted(held.log, 20, 50))
        assert (await held.read()).failed is None
        held.log.batches = whole
        failed = failure(await held.read())
        assert failed.reason is RangeFault.COMPACTED
        assert (
            "18 records were counted from 0 to 20 when the snapshot was taken, 20 are there now:"
            " the new leader has compacted fewer records than the previous leader: "
        ) in str(failed)
        held.lose({4, 5})
        failed = failure(await held.read())
        assert failed.reason is RangeFault.COMPACTED
        assert "18 records were counted" in str(failed)
        assert "18 other records are there now: the new leader has compacted" in str(failed)


# What comes before it


async def test_aged_out_records_are_not_reported_as_compacted() -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        held.log.start = 12
        held.lose(range(12))
        failed = failure(await held.read())
        assert (failed.reason, failed.offset) == (RangeFault.AGED_OUT, 0)
        found = await held.read(fail_on_data_loss=False)
        assert (found.failed, found.lost, found.offsets) == (None, [(0, 12)], [*range(12, 50)])
        assert found.compacted == [], "lost offsets are not compared"


async def test_records_that_age_out_while_read_are_not_reported_as_compacted() -> None:
    """The answer that shows the gap still has the old log start."""
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        held.log.fetch_limit = 1 << 20
        plain = broker.handlers[ApiKey.FETCH]
        held.lose(range(10, 20))

        async def fetch(request: Message) -> Message:
            answer = plain(request)
            result = answer if isinstance(answer, Message) else await answer
            held.log.start = 25
            return result

        broker.handlers[ApiKey.FETCH] = fetch
        failed = failure(await held.read())
        assert (failed.reason, failed.offset) == (RangeFault.AGED_OUT, 10)


async def test_another_topic_and_another_history_come_first() -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        full = list(held.log.batches)

        def make_anew() -> None:
            broker.topic_ids["t"] = NEW
            held.lose({1})

        held.before_answer(1, make_anew)
        assert failure(await held.read()).reason is RangeFault.RECREATED
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        assert held.log.batches == full

        def elect() -> None:
            held.log.epoch_end = 30
            held.lose({1})

        held.before_answer(1, elect)
        failed = failure(await held.read())
        assert (failed.reason, failed.offset) == (RangeFault.TRUNCATED, 30)


async def test_the_rest_of_a_truncated_range_is_compared_with_its_counts() -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        held.log.epoch_end = 30
        held.lose({2, 25})
        found = await held.read(fail_on_data_loss=False)
        assert found.failed is None
        assert found.compacted == [Difference(held.range.counts[0], 19)]
        assert found.lost == [(30, 50)]


async def test_fetched_records_are_returned_although_the_comparison_finds_a_loss() -> None:
    """A reader that accepts data loss returns every record that it does not report as lost."""
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        held.lose({13})

        def age() -> None:
            held.log.start = 35

        held.after_answer(2, age)
        found = await held.read(fail_on_data_loss=False)
        assert (found.failed, found.lost) == (None, [(20, 35)])
        assert found.offsets == [*range(13), *range(14, 20), *range(35, 50)]
        assert found.compacted == [Difference(held.range.counts[0], 19)]
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        held.lose({13})
        held.after_answer(2, broker.topics.clear)
        found = await held.read(fail_on_data_loss=False)
        assert (found.failed, found.lost) == (None, [(20, 50)])
        assert found.offsets == [*range(13), *range(14, 20)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
async def test_aborted_records_count_only_for_read_uncommitted(isolation: str) -> None:
    """Compaction removes aborted records. A read_committed reader returns none of them, so their
    removal is no loss for it."""
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding_transactions(log)
        assert log.aborted == [AbortedTransaction(producer_id=5, first_offset=1)]
        seen = 4 if isolation == "read_committed" else 5
        tally = Tally()
        for data in log.batches:
            header = read_header(data)
            is_seen = not header.is_control and (seen == 5 or header.base_offset != 1)
            if is_seen:
                tally.add(header, data, 0, log.end)
        counts = (Counted(0, log.end, *tally.take()),)
        wanted = PartitionRange("t", 0, 0, log.end, counts=counts)
        found = await asyncio.to_thread(read_now, broker.address, wanted, isolation=isolation)
        assert (found.failed, len(found.values)) == (None, seen)
        log.batches = [data for data in log.batches if read_header(data).base_offset != 1]
        found = await asyncio.to_thread(read_now, broker.address, wanted, isolation=isolation)
        if isolation == "read_committed":
            assert (found.failed, len(found.values)) == (None, seen)
        else:
            assert failure(found).reason is RangeFault.COMPACTED


async def test_a_batch_that_cannot_be_decoded_is_named() -> None:
    async with FakeBroker({"t": 1}) as broker:
        held = Held(broker)
        held.lose({7})
        bent = bytearray(held.log.batches[1])
        bent[61:64] = b"\xff\xff\xff"
        seal(bent, 0, len(bent))
        held.log.batches[1] = bytes(bent)
        failed = failure(await held.read())
        assert (failed.reason, failed.offset) == (RangeFault.CORRUPT, 5)
