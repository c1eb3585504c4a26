"""Tests of the consumer: positions, resets, transactions, damage, and temporary errors of
brokers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pybroker.client import Consumer
from pybroker.client.errors import (
    AnswerTooLarge,
    ClientError,
    Closed,
    DamagedRecords,
    NotAssigned,
    OffsetUnavailable,
    ResponseError,
    SubscriptionConflict,
    TopicUnavailable,
)
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.compression import Codec
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchRequest
from unit_tests.client.fake_broker import LOSE_REQUEST, FakeBroker
from unit_tests.client.held_logs import (
    SEEN,
    T0,
    T1,
    batch,
    consumer,
    holding,
    holding_transactions,
    values,
)
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_MS, PATIENCE_S, in_time

SMALL_FETCHES: dict[str, Any] = {"max_partition_fetch_bytes": 100}


async def test_records_come_in_order_with_everything_that_was_stored() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b", codec=Codec.GZIP), batch(b"c"))
        target.assign([T0])
        first = await target.getone()
        assert (first.topic, first.partition, first.offset, first.timestamp) == ("t", 0, 0, 1_000)
        assert (first.key, first.value, first.headers) == (b"k", b"a", (("h", b"1"),))
        assert (first.leader_epoch, first.timestamp_type.name) == (7, "CREATE_TIME")
        assert await values(target, 2) == [b"b", b"c"]
        assert await target.position(T0) == 3


async def test_async_for_ends_when_the_consumer_is_closed() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b"))
        target.assign([T0])
        seen = []
        async for record in target:
            seen.append(record.value)
            if len(seen) == 2:
                await target.close()
        assert seen == [b"a", b"b"]
        with pytest.raises(Closed):
            await target.getmany()


async def test_getmany_keeps_to_its_limits() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker, max_poll_records=3) as target:
        for number in (0, 1):
            holding(broker.partition("t", number), batch(b"a", b"b", b"c", b"d"))
        target.assign([T0, T1])
        sizes: list[int] = []
        while sum(sizes) < 8:
            found = await target.getmany(timeout_ms=1_000)
            sizes.append(sum(len(records) for records in found.values()))
        assert max(sizes) <= 3
        target.seek(T0, 0)
        assert sum(map(len, (await target.getmany(timeout_ms=1_000, max_records=1)).values())) == 1


async def test_getmany_returns_records_of_the_given_partitions_only() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        holding(broker.partition("t", 0), batch(b"a"), batch(b"b"))
        holding(broker.partition("t", 1), batch(b"c"))
        target.assign([T0, T1])
        found: list[bytes | None] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 2:
                for key, records in (await target.getmany(T0, timeout_ms=1_000)).items():
                    assert key == T0
                    found += [record.value for record in records]
        assert found == [b"a", b"b"]
        assert await target.getmany(T0, timeout_ms=20) == {}
        assert await values(target, 1) == [b"c"]
        with pytest.raises(NotAssigned):
            await target.getmany(T0, TopicPartition("t", 7))


@pytest.mark.parametrize(
    ("policy", "expected"), [("earliest", [b"c", b"d", b"new"]), ("latest", [b"new"])]
)
async def test_without_a_position_reading_starts_as_the_policy_says(
    policy: str, expected: list[bytes]
) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, auto_offset_reset=policy) as target:
        log = broker.partition()
        holding(log, batch(b"a", b"b"), batch(b"c", b"d"))
        log.start, log.batches = 2, log.batches[1:]
        target.assign([T0])
        await target.position(T0)
        log.append(batch(b"new"))
        assert await values(target, len(expected)) == expected


async def test_an_error_of_a_broker_is_raised_with_its_sentence_and_place() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b"))
        target.assign([T0])
        assert await values(target, 2) == [b"a", b"b"]
        broker.partition_faults.append(ErrorCode.CORRUPT_MESSAGE)
        with pytest.raises(ResponseError) as caught:
            await target.getmany(timeout_ms=int(PATIENCE_S * 1_000))
        sentence = ErrorCode.CORRUPT_MESSAGE.text
        assert str(caught.value) == f"CORRUPT_MESSAGE: {sentence} (offset 2 of t-0)"


async def test_without_a_policy_a_missing_position_is_an_error() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, auto_offset_reset="none") as target:
        holding(broker.partition(), batch(b"a"))
        target.assign([T0])
        with pytest.raises(OffsetUnavailable) as caught:
            await target.getmany(timeout_ms=1_000)
        assert caught.value.partitions == {T0}
        target.seek(T0, 9)
        with pytest.raises(OffsetUnavailable, match="offset 9 is out of range"):
            await target.getmany(timeout_ms=1_000)
        target.seek(T0, 0)
        assert await values(target, 1) == [b"a"]


async def test_an_offset_out_of_range_goes_to_where_the_policy_says() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a"))
        target.assign([T0])
        target.seek(T0, 77)
        assert await values(target, 1) == [b"a"]


async def test_seeking_drops_fetched_records() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b", b"c"))
        target.assign([T0])
        assert await values(target, 2) == [b"a", b"b"]
        target.seek(T0, 1)
        assert await values(target, 1) == [b"b"]
        target.seek_to_beginning()
        assert await values(target, 1) == [b"a"]
        target.seek_to_end(T0)
        assert await target.position(T0) == 3
        with pytest.raises(ValueError, match="expected 0 or more"):
            target.seek(T0, -1)


async def test_a_paused_partition_gives_nothing_until_it_is_resumed() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        holding(broker.partition("t", 0), batch(b"a"))
        holding(broker.partition("t", 1), batch(b"b"))
        target.assign([T0, T1])
        target.pause(T0)
        assert target.paused() == {T0}
        assert await values(target, 1) == [b"b"]
        assert await target.getmany(timeout_ms=50) == {}
        target.resume(T0)
        assert await values(target, 1) == [b"a"]


async def test_partitions_that_stay_assigned_keep_their_position() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        holding(broker.partition("t", 0), batch(b"a", b"b"))
        holding(broker.partition("t", 1), batch(b"x"))
        target.assign([T0])
        assert await values(target, 1) == [b"a"]
        target.assign([T0, T1])
        assert sorted(await values(target, 2), key=str) == [b"b", b"x"]
        target.assign([])
        assert target.assignment() == frozenset()


NOT_ASSIGNED: dict[str, Callable[[Consumer], object]] = {
    "seek": lambda target: target.seek(T1, 0),
    "seek_to_beginning": lambda target: target.seek_to_beginning(T0, T1),
    "seek_to_end": lambda target: target.seek_to_end(T0, T1),
    "seek_to_time": lambda target: target.seek_to_time(0, T0, T1),
    "pause": lambda target: target.pause(T0, T1),
    "resume": lambda target: target.resume(T0, T1),
    "position": lambda target: target.position(T1),
    "high_watermark": lambda target: target.high_watermark(T1),
    "lag": lambda target: target.lag(T1),
}


@pytest.mark.parametrize("name", NOT_ASSIGNED)
async def test_a_partition_that_is_not_assigned_is_named_and_nothing_is_done(name: str) -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a"))
        target.assign([T0])
        target.seek(T0, 1)
        with pytest.raises(NotAssigned, match="t-1 is not assigned to this consumer") as caught:
            await in_time(asyncio.ensure_future(_awaited(NOT_ASSIGNED[name], target)))
        assert "which has t-0:" in str(caught.value)
        assert isinstance(caught.value, ClientError)
        assert caught.value.topic_partition == T1
        assert await target.position(T0) == 1
        assert not target.paused()


async def _awaited(operation: Callable[[Consumer], object], target: Consumer) -> None:
    outcome = operation(target)
    if inspect.isawaitable(outcome):
        await outcome


READING: dict[str, Callable[[Consumer], Awaitable[object]]] = {
    "getone": lambda target: target.getone(),
    "async for": anext,
    "getmany": lambda target: target.getmany(timeout_ms=PATIENCE_MS),
    "poll_arrow": lambda target: target.poll_arrow(PATIENCE_MS),
}


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("group", [None, "g"])
async def test_reading_without_anything_to_read_is_an_error(name: str, group: str | None) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, group_id=group) as target:
        with pytest.raises(SubscriptionConflict, match=r"call subscribe\(\) or assign\(\)"):
            await READING[name](target)


async def test_reading_fails_once_nothing_is_assigned_any_more() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        target.assign([T0])
        reading = asyncio.ensure_future(target.getone())
        await idle()
        target.assign([])
        with pytest.raises(SubscriptionConflict):
            await in_time(reading)


# Transactions


@SEEN
async def test_aborted_records_and_markers_are_left_out(level: str, expected: list[bytes]) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, isolation_level=level) as target:
        holding_transactions(broker.partition())
        target.assign([T0])
        assert await values(target, len(expected)) == expected
        await target.getmany(timeout_ms=20)
        assert await target.position(T0) == 8, "markers are passed, too"
        target.seek(T0, 1)
        assert (await values(target, 1)) == expected[1:2]


# Trouble


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
async def test_a_temporary_error_is_waited_out(code: ErrorCode) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a"))
        broker.partition_faults.extend([code, code])
        target.assign([T0])
        assert await values(target, 1) == [b"a"]


async def test_a_lost_connection_is_made_again() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        broker.will(ApiKey.FETCH, LOSE_REQUEST, LOSE_REQUEST)
        broker.will(ApiKey.LIST_OFFSETS, LOSE_REQUEST)
        holding(broker.partition(), batch(b"a"))
        target.assign([T0])
        assert await values(target, 1) == [b"a"]


async def test_an_answer_above_the_limit_is_an_error_and_not_requested_again() -> None:
    async with (
        FakeBroker({"t": 1}) as broker,
        consumer(broker, receive_message_max_bytes=10_000) as target,
    ):
        holding(broker.partition(), batch(bytes(20_000)))
        target.assign([T0])
        with pytest.raises(AnswerTooLarge, match="expected at most 10000"):
            async with asyncio.timeout(PATIENCE_S):
                await target.getone()


async def test_a_permanent_error_is_raised_and_other_partitions_can_be_read() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        holding(broker.partition("t", 1), batch(b"a"))
        broker.partition_faults.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        target.assign([T0, T1])
        with pytest.raises(ResponseError) as caught:
            while True:
                await target.getmany(timeout_ms=1_000)
        assert caught.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        target.pause(T0)
        target.seek(T1, 0)
        assert await values(target, 1) == [b"a"]


async def test_damage_is_reported_with_its_offset_after_the_valid_records() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        log = broker.partition()
        holding(log, batch(b"a"), batch(b"bbbb"), batch(b"c"))
        log.batches[1] = log.batches[1].replace(b"bbbb", b"bxbb")
        target.assign([T0])
        assert await values(target, 1) == [b"a"]
        with pytest.raises(DamagedRecords, match="checksum") as caught:
            await target.getmany(timeout_ms=1_000)
        assert caught.value.offset == 1
        assert await target.position(T0) == 1
        target.seek(T0, 2)
        assert await values(target, 1) == [b"c"]


async def test_damage_passes_unseen_where_the_user_wants_so() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, check_crcs=False) as target:
        log = broker.partition()
        holding(log, batch(b"bbbb"))
        log.batches[0] = log.batches[0].replace(b"bbbb", b"bxbb")
        target.assign([T0])
        assert await values(target, 1) == [b"bxbb"]


async def test_one_partition_without_a_leader_does_not_hold_up_the_others() -> None:
    async with FakeBroker({"t": 1, "u": 1}) as broker, consumer(broker) as target:
        holding(broker.partition("u"), batch(b"a"))
        target.assign([TopicPartition("nosuch", 0), TopicPartition("u", 0)])
        assert await values(target, 1) == [b"a"]
        broker.topics["nosuch"] = 1
        holding(broker.partition("nosuch"), batch(b"late"))
        assert await values(target, 1) == [b"late"]


async def test_no_more_is_fetched_ahead_than_fits() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, **SMALL_FETCHES) as target:
        log = broker.partition()
        holding(log, batch(b"x" * 200))
        target.assign([T0])
        await broker.until(lambda: bool(broker.requests(FetchRequest)))
        holding(log, batch(b"y"))
        assert await target.getmany(timeout_ms=30, max_records=0) == {}
        assert len(broker.requests(FetchRequest)) == 1, "the fetched records fill the buffer"
        assert await values(target, 2) == [b"x" * 200, b"y"]


# Looking up


async def test_offsets_are_looked_up_by_time_and_at_both_ends() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b", b"c"))
        assert await target.partitions_for("t") == [T0, T1]
        assert await target.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
        assert await target.end_offsets([T0, T1]) == {T0: 3, T1: 0}
        found = await target.offsets_for_times({T0: 1_001, T1: 5})
        answer = found[T0]
        assert answer is not None
        assert answer.offset == 1
        assert found[T1] is None


async def test_a_topic_that_does_not_exist_is_an_error_in_time() -> None:
    async with FakeBroker({}) as broker, consumer(broker, default_api_timeout_ms=500) as target:
        with pytest.raises(TopicUnavailable):
            await target.partitions_for("nosuch")
        with pytest.raises(ResponseError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await target.end_offsets([TopicPartition("nosuch", 0)])
