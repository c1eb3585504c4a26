"""Tests of reading exact ranges: the returned and the omitted records, the errors that end the
reading, and brokers with temporary errors."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable

import pytest

from pybroker.client import range_reader
from pybroker.client.errors import Closed, NoBrokers, ResponseError
from pybroker.client.range_reader import (
    PartitionRange,
    Patience,
    RangeFault,
    RangeReader,
)
from pybroker.errors import ConfigError, ErrorCode
from pybroker.records.batch import read_header
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pybroker.wire.messages.list_offsets import OffsetForLeaderEpochRequest
from pybroker.wire.messages.metadata import MetadataRequest
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import BEHAVE, LOSE_REQUEST, NEVER_ANSWER, FakeBroker, Partition
from unit_tests.client.held_logs import batch, holding
from unit_tests.client.ranges.readings import OLD, QUICK, failure, numbers, read, read_now
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S


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
        found = await read(broker, 0, 10, patience=Patience())
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


async def test_a_leader_of_before_the_range_was_made_is_not_believed() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.topic_ids["t"] = OLD
        holding(broker.partition(), batch(*numbers(0, 10)))
        broker.leader_epoch = 6
        reading = asyncio.ensure_future(
            read(broker, 0, 10, topic_id=str(OLD), leader_epoch=7, patience=Patience())
        )
        await broker.until(lambda: len(broker.requests(MetadataRequest)) > 5)
        assert not broker.requests(FetchRequest)
        broker.leader_epoch = 8
        assert (await reading).offsets == list(range(10))


@pytest.mark.parametrize("what", ["no leader", "no answer", "no records", "throttled", "elsewhere"])
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
            broker.handlers[ApiKey.FETCH] = lambda request: empty(log, what)
        failed = failure(await read(broker, 0, 10, patience=Patience(stalled_s=0.25, bare_s=0.1)))
        assert (failed.reason, failed.offset) == (RangeFault.STALLED, 0)
        assert "for 0.25 s" in str(failed)
        assert "kafkaConsumer.pollTimeoutMs" in str(failed)


async def test_a_broker_that_never_answers_does_not_make_the_wait_longer() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(*numbers(0, 10)))
        broker.will(ApiKey.FETCH, *[NEVER_ANSWER] * 10)
        async with asyncio.timeout(PATIENCE_S):
            found = await read(
                broker,
                *(0, 10),
                patience=Patience(stalled_s=0.3),
                conf={"request.timeout.ms": "600000"},
            )
        assert failure(found).reason is RangeFault.STALLED


async def test_the_range_is_looked_at_again_when_another_leads() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(b"%d" % number) for number in range(30)))
        plain = broker.handlers[ApiKey.FETCH]

        def elect(request: Message) -> Message | Awaitable[Message]:
            if len(broker.requests(FetchRequest)) == 12:
                broker.leader_epoch, log.epoch_end = 8, 20
                broker.partition_faults.append(ErrorCode.FENCED_LEADER_EPOCH)
            return plain(request)

        broker.handlers[ApiKey.FETCH] = elect
        found = await read(broker, 0, 30, leader_epoch=7)
        assert (failure(found).reason, found.offsets) == (RangeFault.TRUNCATED, list(range(11)))


def empty(log: Partition, why: str) -> Message:
    """Return an answer without records although all records are committed. A broker that throttles,
    or is no longer the leader, gives such an answer."""
    row = PartitionData(
        partition_index=0,
        high_watermark=log.end,
        last_stable_offset=log.end,
        preferred_read_replica=2 if why == "elsewhere" else -1,
    )
    answers = [FetchableTopicResponse(topic="t", partitions=[row])]
    return FetchResponse(throttle_time_ms=int(why == "throttled"), responses=answers)


async def test_a_topic_that_may_not_be_read_is_an_error_at_once() -> None:
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
        (70, "checksum of the batch at offset 5 is wrong"),
        (16, "magic is 3"),
        (11, "incomplete|checksum|batch header"),
        (8, "incomplete|length"),
        (7, "has the offsets 0 to 4, but the next batch begins at 4"),
        (2, "expected ascending offsets at or above 0 and below the high watermark 15"),
    ],
)
async def test_a_batch_that_stays_damaged_ends_the_reading(position: int, text: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        holding(log, *(batch(*numbers(first, first + 5)) for first in range(0, 15, 5)))
        damaged(log, 1, position)
        broker.handlers[ApiKey.FETCH] = lambda request: rest_of(log, request)
        found = await read(broker, 0, 15, fail_on_data_loss=False)
        failed = failure(found)
        at = 0 if position == 7 else 5
        assert (failed.reason, failed.offset) == (RangeFault.CORRUPT, at)
        assert re.search(text, str(failed))
        assert found.offsets == list(range(at))


def rest_of(log: Partition, request: Message) -> Message:
    """Return the log from the fetch offset on. Each batch has five records: the offsets in the
    header of a damaged batch cannot be trusted."""
    assert isinstance(request, FetchRequest)
    first = request.topics[0].partitions[0].fetch_offset // 5
    row = PartitionData(
        partition_index=0,
        high_watermark=log.end,
        last_stable_offset=log.end,
        log_start_offset=log.start,
        records=b"".join(log.batches[first:]),
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
    await idle()
    assert not full.done()
    assert waiting.get() == (0, [(header, data)])
    await full
    waiting.end(None)
    assert waiting.get() == (1, [(header, data)])
    assert waiting.get() is None


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


def test_fetched_batches_may_be_taken_after_closing() -> None:
    data = memoryview(batch(b"x"))
    loop = asyncio.new_event_loop()
    waiting = range_reader.Waiting(loop)
    loop.run_until_complete(waiting.put(0, [(read_header(data), data)]))
    loop.close()
    assert waiting.get() == (0, [(read_header(data), data)])


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


def test_an_unreachable_cluster_is_reported_with_its_addresses() -> None:
    found = read_now("127.0.0.1:1", PartitionRange("t", 0, 0, 5))
    assert isinstance(found.failed, NoBrokers)
    assert "127.0.0.1:1" in str(found.failed)


def test_every_fault_of_the_options_is_reported() -> None:
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
