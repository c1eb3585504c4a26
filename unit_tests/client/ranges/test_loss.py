"""Tests of the missing offsets of a range: which of them count as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from pybroker.client.range_reader import (
    PartitionRange,
    RangeFault,
    RangeReader,
)
from pybroker.records.control import ControlType
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    AbortedTransaction,
    FetchRequest,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.held_logs import batch, holding, marker
from unit_tests.client.ranges.readings import IMPATIENT, NEW, OLD, QUICK, failure, numbers, read


async def test_a_log_that_begins_behind_the_range_has_lost_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        for first in range(0, 40, 10):
            holding(log, batch(*numbers(first, first + 10)))
        log.start = 15
        failed = failure(await read(broker, 5, 35))
        assert (failed.reason, failed.offset) == (RangeFault.AGED_OUT, 5)
        assert str(failed).startswith("t-0@5: the partition now begins at offset 15")
        found = await read(broker, 5, 35, fail_on_data_loss=False)
        assert (found.failed, found.values, found.lost) == (None, numbers(15, 35), [(5, 15)])
        found = await read(broker, 5, 12, fail_on_data_loss=False)
        assert (found.failed, found.values, found.lost) == (None, [], [(5, 12)])


async def test_another_topic_of_the_same_name_is_not_read() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(*numbers(0, 10)))
        broker.topic_ids["t"] = NEW
        failed = failure(await read(broker, 0, 10, topic_id=str(OLD)))
        assert (failed.reason, failed.offset) == (RangeFault.RECREATED, 0)
        found = await read(broker, 0, 10, topic_id=str(OLD), fail_on_data_loss=False)
        assert (found.failed, found.values, found.lost) == (None, [], [(0, 10)])
        found = await read(broker, 0, 10, topic_id=str(NEW))
        assert (found.failed, found.values) == (None, numbers(0, 10))


# What is no loss


@pytest.mark.parametrize("bytes_max", [1, 1 << 30])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
async def test_markers_and_aborted_records_are_stepped_over(isolation: str, bytes_max: int) -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = bytes_max
        holding(log, batch(b"0"), batch(b"bad", producer=5), batch(b"2", producer=6))
        holding(log, batch(b"bad", producer=5), marker(ControlType.ABORT, 5), batch(b"5"))
        holding(log, batch(b"6", producer=5), marker(ControlType.COMMIT, 5))
        holding(log, marker(ControlType.COMMIT, 6))
        log.aborted = [AbortedTransaction(producer_id=5, first_offset=1)]
        expected = [0, 2, 5, 6] if isolation == "read_committed" else [0, 1, 2, 3, 5, 6]
        for start in range(log.end):
            found = await read(broker, start, log.end, isolation=isolation)
            assert found.failed is None
            assert found.offsets == [offset for offset in expected if offset >= start]
        assert (await read(broker, 7, 9, isolation=isolation)).failed is None
        assert (await read(broker, 3, 5, isolation=isolation)).lost == []


async def test_compacted_offsets_are_no_loss_wherever_they_are() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.end = 4
        holding(log, batch(*numbers(4, 6)))
        log.end = 20
        holding(log, batch(*numbers(20, 22)))
        for start, end, expected in [(0, 22, [4, 5, 20, 21]), (0, 10, [4, 5]), (7, 15, [])]:
            found = await read(broker, start, end)
            assert (found.failed, found.offsets, found.lost) == (None, expected, [])


async def test_a_log_whose_last_offsets_were_compacted_away_is_read_to_its_end() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, batch(*numbers(0, 5)))
        log.end = 9
        found = await read(broker, 0, 9)
        assert (found.failed, found.offsets) == (None, [0, 1, 2, 3, 4])


async def test_an_empty_answer_proves_nothing_before_the_end_is_committed() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, batch(*numbers(0, 5)))
        log.stable_end = 3
        log.batches, kept = [], log.batches
        reading = asyncio.ensure_future(read(broker, 0, 5))
        await broker.until(lambda: len(broker.requests(FetchRequest)) > 30)
        log.batches, log.stable_end = kept, None
        assert (await reading).offsets == [0, 1, 2, 3, 4]


async def test_records_that_age_out_after_they_were_read_are_no_loss() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(b"%d" % number) for number in range(20)))
        wanted = PartitionRange("t", 0, 0, 20, leader_epoch=7)

        def read_while_it_ages_out() -> list[int]:
            options = {"bootstrap.servers": broker.address, **QUICK}
            found = []
            with RangeReader(options, patience=IMPATIENT) as reader:
                for header, _ in reader.batches(wanted):
                    found.append(header.base_offset)
                    log.start = header.base_offset
            return found

        assert await asyncio.to_thread(read_while_it_ages_out) == list(range(20))


# Loss


async def test_a_gap_below_the_new_log_start_is_loss() -> None:
    """The answer that shows the gap still has the old log start. The next answer has the new
    one."""
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, batch(*numbers(0, 5)))
        log.end = 10
        holding(log, batch(*numbers(10, 15)))
        plain = broker.handlers[ApiKey.FETCH]

        async def fetch(request: Message) -> Message:
            answer = plain(request)
            result = answer if isinstance(answer, Message) else await answer
            log.start = 8
            return result

        broker.handlers[ApiKey.FETCH] = fetch
        failed = failure(await read(broker, 0, 15))
        assert (failed.reason, failed.offset) == (RangeFault.AGED_OUT, 5)
        log.start = 0
        found = await read(broker, 0, 15, fail_on_data_loss=False)
        assert (found.failed, found.lost) == (None, [(5, 8)])
        assert found.offsets == [*range(5), *range(10, 15)]


async def test_a_log_that_ages_out_while_it_is_read_has_lost_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(*numbers(first, first + 5)) for first in range(0, 50, 5)))

        def age(request: Message) -> Message | Awaitable[Message]:
            if len(broker.requests(FetchRequest)) == 3:
                log.start = 22
            return plain(request)

        plain = broker.handlers[ApiKey.FETCH]
        broker.handlers[ApiKey.FETCH] = age
        failed = failure(await read(broker, 0, 50))
        assert (failed.reason, failed.offset) == (RangeFault.AGED_OUT, 10)
        broker.seen.clear()
        log.start = 0
        found = await read(broker, 0, 50, fail_on_data_loss=False)
        assert (found.failed, found.lost) == (None, [(10, 22)])
        assert found.offsets == [*range(10), *range(22, 50)]


async def test_a_history_that_was_cut_off_is_noticed_although_the_log_has_grown_again() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(*numbers(first, first + 5)) for first in range(0, 50, 5)))
        log.epoch_end, broker.leader_epoch = 20, 8
        failed = failure(await read(broker, 0, 40, leader_epoch=7))
        assert (failed.reason, failed.offset) == (RangeFault.TRUNCATED, 20)
        assert (await read(broker, 0, 20, leader_epoch=7)).offsets == list(range(20))
        assert (await read(broker, 0, 40)).offsets == list(range(40))
        found = await read(broker, 0, 40, leader_epoch=7, fail_on_data_loss=False)
        assert (found.failed, found.offsets, found.lost) == (None, list(range(20)), [(20, 40)])
        found = await read(broker, 30, 40, leader_epoch=7, fail_on_data_loss=False)
        assert (found.failed, found.offsets, found.lost) == (None, [], [(30, 40)])


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
async def test_reading_fails_if_returned_records_were_truncated(
    fail_on_data_loss: bool,
) -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(*numbers(first, first + 5)) for first in range(0, 50, 5)))

        def elect(request: Message) -> Message | Awaitable[Message]:
            if len(broker.requests(FetchRequest)) == 6:
                log.epoch_end = 12
            return plain(request)

        plain = broker.handlers[ApiKey.FETCH]
        broker.handlers[ApiKey.FETCH] = elect
        found = await read(broker, 0, 50, leader_epoch=7, fail_on_data_loss=fail_on_data_loss)
        failed = failure(found)
        assert (failed.reason, failed.offset) == (RangeFault.TRUNCATED, 12)


async def test_a_lower_leader_epoch_tells_of_another_topic_where_topics_have_no_ids() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(*numbers(0, 10)))
        failed = failure(await read(broker, 0, 10, leader_epoch=8))
        assert (failed.reason, failed.offset) == (RangeFault.RECREATED, 0)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
async def test_records_of_another_topic_are_never_taken_for_those_that_were_meant(
    fail_on_data_loss: bool,
) -> None:
    """The topic is recreated while the range is read."""
    async with FakeBroker({"t": 1}) as broker:
        broker.topic_ids["t"] = OLD
        holding(broker.partition(), batch(*numbers(0, 10)))

        def make_anew(request: Message) -> Message | Awaitable[Message]:
            broker.topic_ids["t"] = NEW
            return plain(request)

        plain = broker.handlers[ApiKey.FETCH]
        broker.handlers[ApiKey.FETCH] = make_anew
        found = await read(broker, 0, 10, topic_id=str(OLD), fail_on_data_loss=fail_on_data_loss)
        assert failure(found).reason is RangeFault.RECREATED


async def test_a_topic_that_is_not_there_is_gone_when_that_lasts() -> None:
    async with FakeBroker({}) as broker:
        failed = failure(await read(broker, 3, 10))
        assert (failed.reason, failed.offset) == (RangeFault.GONE, 3)
        found = await read(broker, 3, 10, fail_on_data_loss=False)
        assert (found.failed, found.lost) == (None, [(3, 10)])
        broker.topics["t"] = 0
        assert failure(await read(broker, 3, 10)).reason is RangeFault.GONE
