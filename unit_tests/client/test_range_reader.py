"""Reading exact ranges: what is given, what is left out, what ends the reading, and brokers that
stumble."""

from __future__ import annotations

import asyncio
import re
import threading
import uuid
from collections.abc import Awaitable
from typing import Any

import pytest

from pybroker.client import range_reader
from pybroker.client.errors import Closed, NoBrokers, ResponseError
from pybroker.client.range_reader import (
    PartitionRange,
    Patience,
    RangeFailed,
    RangeFault,
    RangeReader,
)
from pybroker.errors import ConfigError, ErrorCode
from pybroker.records.batch import read_header
from pybroker.records.builder import BatchBuilder
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.records.record import decode_records
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pybroker.wire.messages.list_offsets import OffsetForLeaderEpochRequest
from pybroker.wire.messages.metadata import MetadataRequest
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import BEHAVE, LOSE_REQUEST, FakeBroker, Partition

QUICK = {
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "5",
    "reconnect.backoff.ms": "1",
    "reconnect.backoff.max.ms": "5",
    "fetch.max.wait.ms": "10",
    "bootstrap.timeout.ms": "500",
}
IMPATIENT = Patience(stalled_s=5.0, gone_s=0.1, recreated_s=0.1, corrupt_s=0.1, bare_s=0.1)
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def batch(*values: bytes, producer: int = -1) -> bytes:
    """A batch; in a transaction if it has a producer."""
    builder = BatchBuilder()
    for value in values:
        builder.append(1_000, b"k", value)
    if producer < 0:
        return builder.build()
    return builder.build(producer, 0, 0, transactional=True)


def marker(kind: ControlType, producer: int) -> bytes:
    return build_end_transaction(
        EndTransaction(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=1
    )


def holding(log: Partition, *batches: bytes) -> None:
    for data in batches:
        log.append(data)


def numbers(first: int, beyond: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, beyond)]


class Reading:
    """What one range gave: the values of its own offsets, what was lost, and how it ended."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.lost: list[tuple[int, int]] = []
        self.failed: BaseException | None = None


def read_now(address: str, wanted: PartitionRange, **options: Any) -> Reading:
    found = Reading()
    settings = {"patience": IMPATIENT, **options}
    with RangeReader({"bootstrap.servers": address, **QUICK}, **settings) as reader:
        try:
            for _, data in reader.batches(wanted):
                for record in decode_records(data, decompressed_bytes_max=1 << 24):
                    if reader.first_offset <= record.offset < wanted.end:
                        found.values.append(record.value)
                        found.offsets.append(record.offset)
        except Exception as error:
            found.failed = error
        found.lost = reader.lost
    return found


async def read(broker: FakeBroker, start: int, end: int, **options: Any) -> Reading:
    """Read a range of the fake topic; keywords are those of a range, or of the reader."""
    known = {key: options.pop(key) for key in ("topic_id", "leader_epoch") if key in options}
    wanted = PartitionRange("t", 0, start, end, **known)
    return await asyncio.to_thread(read_now, broker.address, wanted, **options)


def failure(found: Reading) -> RangeFailed:
    assert isinstance(found.failed, RangeFailed), found.failed
    return found.failed


async def test_a_range_begins_and_ends_inside_of_batches() -> None:
    async with FakeBroker({"t": 1}) as broker:
        for first in range(0, 40, 10):
            holding(broker.partition(), batch(*numbers(first, first + 10)))
        found = await read(broker, 5, 25)
        assert (found.failed, found.values, found.lost) == (None, numbers(5, 25), [])
        assert (await read(broker, 7, 7)).values == []


async def test_many_small_answers_are_one_range() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(*numbers(first, first + 3)) for first in range(0, 300, 3)))
        found = await read(broker, 0, 300)
        assert (found.failed, found.values) == (None, numbers(0, 300))


async def test_a_log_that_begins_behind_the_range_has_lost_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        for first in range(0, 40, 10):
            holding(log, batch(*numbers(first, first + 10)))
        log.start = 15
        failed = failure(await read(broker, 5, 35))
        assert (failed.reason, failed.offset) == (RangeFault.AGED_OUT, 5)
        assert str(failed).startswith("t-0@5: the partition begins at 15 now")
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


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
async def test_markers_and_aborted_records_are_stepped_over(isolation: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
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


async def test_what_ages_out_after_it_was_read_is_no_loss() -> None:
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


async def test_a_gap_of_which_nobody_can_tell_any_more_what_it_was_is_loss() -> None:
    """The answer that shows the gap still has the old log start; it has moved when the next one
    comes."""
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
async def test_what_was_given_of_a_history_that_was_cut_off_then_is_never_passed_over(
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
    """The topic is made anew while it is read."""
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


# Brokers that stumble


async def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again() -> None:
    async with FakeBroker({}) as broker:
        holding(broker.partition(), batch(*numbers(0, 10)))
        patience = Patience(gone_s=20.0)
        reading = asyncio.ensure_future(read(broker, 0, 10, patience=patience))
        await broker.until(lambda: len(broker.requests(MetadataRequest)) > 5)
        broker.topics["t"] = 1
        assert (await reading).offsets == list(range(10))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ],
)
async def test_reading_goes_on_after(code: ErrorCode) -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(b"%d" % number) for number in range(10)))
        broker.partition_faults.extend([code, ErrorCode.NONE, ErrorCode.NONE, code, code])
        found = await read(broker, 0, 10)
        assert (found.failed, found.offsets) == (None, list(range(10)))


async def test_reading_goes_on_after_connections_break_and_leaders_change() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(b"%d" % number) for number in range(30)))
        broker.will(ApiKey.FETCH, BEHAVE, LOSE_REQUEST, BEHAVE, BEHAVE, LOSE_REQUEST)
        broker.will(ApiKey.METADATA, BEHAVE, LOSE_REQUEST, BEHAVE, LOSE_REQUEST)
        broker.will(ApiKey.LIST_OFFSETS, LOSE_REQUEST)
        broker.will(ApiKey.OFFSET_FOR_LEADER_EPOCH, LOSE_REQUEST)
        plain = broker.handlers[ApiKey.FETCH]

        def change(request: Message) -> Message | Awaitable[Message]:
            if len(broker.requests(FetchRequest)) == 12:
                broker.leader_epoch = 8
                broker.partition_faults.append(ErrorCode.FENCED_LEADER_EPOCH)
            return plain(request)

        broker.handlers[ApiKey.FETCH] = change
        found = await read(broker, 0, 30, leader_epoch=7)
        assert (found.failed, found.offsets) == (None, list(range(30)))
        looks = broker.requests(OffsetForLeaderEpochRequest)
        assert len(looks) >= 3, "before, after the change of leader, and at the end"


async def test_a_partition_without_a_leader_is_waited_for() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(*numbers(0, 10)))
        broker.without_leader = True
        reading = asyncio.ensure_future(read(broker, 0, 10))
        await broker.until(lambda: len(broker.requests(MetadataRequest)) > 5)
        broker.without_leader = False
        assert (await reading).offsets == list(range(10))


@pytest.mark.parametrize("what", ["no leader", "no answer", "no records", "throttled"])
async def test_reading_that_makes_no_progress_ends(what: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, batch(*numbers(0, 10)))
        if what == "no leader":
            broker.without_leader = True
        elif what == "no answer":
            broker.will(ApiKey.FETCH, *[LOSE_REQUEST] * 10_000)
        elif what == "no records":
            log.stable_end = 5
            log.batches = []
        else:
            log.batches = []
            broker.handlers[ApiKey.FETCH] = lambda request: throttled(log)
        failed = failure(await read(broker, 0, 10, patience=Patience(stalled_s=0.5, bare_s=0.1)))
        assert (failed.reason, failed.offset) == (RangeFault.STALLED, 0)
        assert "for 0.5 s" in str(failed)
        assert "kafkaConsumer.pollTimeoutMs" in str(failed)


def throttled(log: Partition) -> Message:
    row = PartitionData(partition_index=0, high_watermark=log.end, last_stable_offset=log.end)
    answers = [FetchableTopicResponse(topic="t", partitions=[row])]
    return FetchResponse(throttle_time_ms=1, responses=answers)


async def test_a_topic_that_may_not_be_read_is_said_at_once() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = await read(broker, 0, 10)
        assert isinstance(found.failed, ResponseError)
        assert found.failed.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


# Damage


def damaged(log: Partition, number: int, position: int, change: int = 1) -> None:
    data = bytearray(log.batches[number])
    data[position] ^= change
    log.batches[number] = bytes(data)


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (70, "checksum of the batch at 5 is wrong"),
        (16, "magic is 3"),
        (11, "cut off|checksum|batch header"),
        (8, "cut off|length"),
        (7, "begins at 4, where 5 was due"),
        (2, "has the offsets"),
    ],
)
async def test_a_batch_that_stays_damaged_ends_the_reading(position: int, text: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, *(batch(*numbers(first, first + 5)) for first in range(0, 15, 5)))
        damaged(log, 1, position)
        broker.handlers[ApiKey.FETCH] = lambda request: whole_log(log)
        found = await read(broker, 0, 15, fail_on_data_loss=False)
        failed = failure(found)
        assert (failed.reason, failed.offset) == (RangeFault.CORRUPT, 5)
        assert re.search(text, str(failed))
        assert found.offsets == [0, 1, 2, 3, 4]


def whole_log(log: Partition) -> Message:
    """Whatever the offset: what is damaged cannot be looked for by its header."""
    row = PartitionData(
        partition_index=0,
        high_watermark=log.end,
        last_stable_offset=log.end,
        log_start_offset=log.start,
        records=b"".join(log.batches),
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])


async def test_a_batch_that_another_replica_has_whole_is_read_from_there() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, *(batch(*numbers(first, first + 5)) for first in range(0, 15, 5)))
        damaged(log, 1, 70)
        reading = asyncio.ensure_future(read(broker, 0, 15, patience=Patience(corrupt_s=20.0)))
        await broker.until(lambda: len(broker.requests(FetchRequest)) > 5)
        damaged(log, 1, 70)
        assert (await reading).offsets == list(range(15))


# The thread


async def test_fetching_waits_while_the_buffer_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    data = memoryview(batch(b"x"))
    header = read_header(data)
    monkeypatch.setattr(range_reader, "BUFFER_BYTES_MAX", 2 * header.size)
    waiting = range_reader.Waiting(asyncio.get_running_loop())
    await waiting.put(0, [(header, data)])
    full = asyncio.ensure_future(waiting.put(1, [(header, data)]))
    await some_turns()
    assert not full.done()
    assert waiting.get() == (0, [(header, data)])
    await full
    waiting.end(None)
    assert waiting.get() == (1, [(header, data)])
    assert waiting.get() is None


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_closing_ends_the_thread_and_its_connections() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, batch(*numbers(0, 5)))
        log.end = log.stable_end = 10
        options = {"bootstrap.servers": broker.address, **QUICK}
        reader = RangeReader(options).__enter__()
        waiting = asyncio.ensure_future(
            asyncio.to_thread(list, reader.batches(PartitionRange("t", 0, 0, 20)))
        )
        await broker.until(lambda: len(broker.requests(FetchRequest)) >= 3)
        await asyncio.to_thread(reader.close)
        reader.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            next(reader.batches(PartitionRange("t", 0, 0, 20)))
        assert not [each for each in threading.enumerate() if each.name == "pybroker ranges"]


async def test_one_reader_reads_one_range_after_the_other() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(b"%d" % number) for number in range(50)))

        def read_all() -> list[list[int]]:
            with RangeReader({"bootstrap.servers": broker.address, **QUICK}) as reader:
                left = reader.batches(PartitionRange("t", 0, 0, 50))
                next(left)
                left.close()
                return [
                    [header.base_offset for header, _ in reader.batches(wanted)]
                    for wanted in (PartitionRange("t", 0, 3, 5), PartitionRange("t", 0, 40, 44))
                ]

        assert await asyncio.to_thread(read_all) == [[3, 4], [40, 41, 42, 43]]


async def test_a_small_range_asks_for_few_bytes() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, batch(*numbers(0, 10)))
        await read(broker, 0, 10)
        await read(broker, 0, 10)
        (first, *_) = broker.requests(FetchRequest)
        assert isinstance(first, FetchRequest)
        assert first.topics[0].partitions[0].partition_max_bytes == 64 * 1024


def test_nobody_there_is_said_with_the_addresses() -> None:
    found = read_now("127.0.0.1:1", PartitionRange("t", 0, 0, 5))
    assert isinstance(found.failed, NoBrokers)
    assert "127.0.0.1:1" in str(found.failed)


def test_every_fault_of_the_options_is_told() -> None:
    options = {
        "kafka.bootstrap.servers": "nowhere",
        "KAFKA.FETCH.MAX.BYTES": "many",
        "kafkaConsumer.pollTimeoutMs": "0",
        "nosuch": "1",
    }
    with pytest.raises(ConfigError) as caught:
        RangeReader(options)
    assert len(caught.value.faults) == 4
    with pytest.raises(ConfigError, match=r"isolation.level"):
        RangeReader({}, isolation="serializable")
