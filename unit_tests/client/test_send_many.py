"""Tests of the calls of the producer that accept a record without waiting, or many records."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Generator
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pybroker.client import Consumer, Producer, RecordMetadata, TopicInfo, sender
from pybroker.client.accumulator import ProducerBatch
from pybroker.client.errors import (
    BufferExhausted,
    Closed,
    DeliveryFailed,
    RecordTooLarge,
    TopicUnavailable,
    WouldBlock,
)
from pybroker.client.produce_requests import compress_batch
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.compression import Codec
from pybroker.records.record import decode_records
from pybroker.records.record_buffer import partition_of_key
from pybroker.wire.api import ApiKey
from unit_tests.client.fake_broker import BEHAVE, NEVER_ANSWER, FakeBroker, refuse
from unit_tests.client.test_producer import QUICK, numbered, producer
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import PATIENCE_S

TIMESTAMP = 1_700_000_000_000


# send_nowait


async def test_a_record_is_accepted_without_waiting_once_the_topic_is_known() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=5) as target:
        with pytest.raises(WouldBlock, match="the metadata of topic t is not known yet"):
            target.send_nowait("t", b"0")
        assert (await target.send_and_wait("t", b"0")).offset == 0
        deliveries = [target.send_nowait("t", value, timestamp_ms=5) for value in numbered(9)[1:]]
        assert [await each for each in deliveries] == [
            RecordMetadata("t", 0, offset, 5) for offset in range(1, 9)
        ]
        assert broker.partition().values() == numbered(9)


async def test_a_partition_that_is_not_known_would_block() -> None:
    async with FakeBroker({"t": 2}) as broker, producer(broker) as target:
        assert await target.partitions_for("t") == [0, 1]
        assert (await target.send_nowait("t", b"", partition=1)).partition == 1
        with pytest.raises(WouldBlock, match="topic t with partition 2"):
            target.send_nowait("t", b"", partition=2)


async def test_full_memory_would_block_and_send_waits_for_it() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, buffer_memory=1_000, batch_size=300) as target:
            await target.partitions_for("t")
            values = [b"%d" % number * 100 for number in range(10)]
            blocked = 0
            for value in values * 5:
                try:
                    target.send_nowait("t", value)
                except WouldBlock as error:
                    assert "buffer.memory = 1000 is full" in str(error)
                    blocked += 1
                    await target.send("t", value)
            await target.flush()
            assert blocked
        assert broker.partition().values() == values * 5


async def test_a_record_without_waiting_is_checked() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker) as target:
            await target.send_and_wait("t", b"0")
            with pytest.raises(TypeError, match="the value of a record must be bytes, not str"):
                target.send_nowait("t", "text")  # type: ignore[arg-type]
            with pytest.raises(RecordTooLarge):
                target.send_nowait("t", b"x" * 2_000_000)
        with pytest.raises(Closed):
            target.send_nowait("t", b"late")
        assert broker.partition().values() == [b"0"]


# send_many


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(
        st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=60)),
        max_size=80,
    ),
    keyed=st.booleans(),
    batch_size=st.sampled_from([0, 100, 300, 16_384]),
    memory=st.sampled_from([250, 1_000, 1 << 20]),
)
def test_any_records_arrive_once_and_in_order(
    rows: list[tuple[bytes | None, bytes | None]], keyed: bool, batch_size: int, memory: int
) -> None:
    asyncio.run(_send_and_compare(rows, keyed, batch_size=batch_size, buffer_memory=memory))


async def _send_and_compare(
    rows: list[tuple[bytes | None, bytes | None]], keyed: bool, **options: Any
) -> None:
    values = [value for _, value in rows]
    keys = [key for key, _ in rows] if keyed else None
    async with (
        asyncio.timeout(PATIENCE_S),
        FakeBroker({"t": 3}) as broker,
        producer(broker, **options) as target,
    ):
        deliveries = await target.send_many("t", values, keys, timestamp_ms=TIMESTAMP)
        found = await deliveries
    assert len(found) == len(rows)
    stored = {
        (number, offset): record
        for number in range(3)
        for offset, record in enumerate(records_of(broker, number))
    }
    assert len(stored) == len(rows)
    last: dict[int, int] = {}
    for (key, value), place in zip(rows, found, strict=True):
        assert stored[place.partition, place.offset] == (key if keyed else None, value)
        assert place.offset > last.get(place.partition, -1), "in the order of the call"
        last[place.partition] = place.offset
        if keyed and key is not None:
            assert place.partition == partition_of_key(key, 3)
        assert place.timestamp == TIMESTAMP


def records_of(broker: FakeBroker, partition: int) -> list[tuple[bytes | None, bytes | None]]:
    log = broker.partitions.get(TopicPartition("t", partition))
    return [
        (record.key, record.value)
        for batch in (log.batches if log else [])
        for record in decode_records(batch, decompressed_bytes_max=1 << 24)
    ]


async def test_many_records_join_those_of_other_calls_in_order() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=50) as target:
        values = numbered(40)
        for start in range(0, 40, 10):
            await target.send("t", values[start])
            many = await target.send_many("t", values[start + 1 : start + 10])
            assert len(many) == 9
        await target.flush()
        assert broker.partition().values() == values
        assert [each.result().offset for each in many] == list(range(31, 40))


async def test_all_records_go_to_a_given_partition() -> None:
    async with FakeBroker({"t": 3}) as broker, producer(broker, batch_size=100) as target:
        many = await target.send_many("t", numbered(30), numbered(30), partition=1)
        assert [each.partition for each in await many] == [1] * 30
        with pytest.raises(TopicUnavailable, match="no partition 5"):
            await target.send_many("t", [b""], partition=5)


async def test_records_without_a_key_change_the_partition_with_each_batch() -> None:
    a_batch = 16_384 // 110
    async with FakeBroker({"t": 3}) as broker, producer(broker) as target:
        many = await target.send_many("t", [b"x" * 100] * 12 * a_batch)
        found = [each.partition for each in await many]
        lengths = [len([*group]) for _, group in itertools.groupby(found)]
        assert set(found) == {0, 1, 2}
        assert all(a_batch <= length < 2 * a_batch for length in lengths[:-1]), lengths


async def test_a_record_above_the_size_of_a_request_joins_no_batch() -> None:
    options: dict[str, Any] = {"batch_size": 100_000, "max_request_size": 1_000, "linger_ms": 50}
    async with FakeBroker({"t": 1}) as broker, producer(broker, **options) as target:
        await target.send("t", b"")
        with pytest.raises(RecordTooLarge):
            await target.send("t", b"x" * 2_000)
        sent = [await target.send("t", b"x" * 400) for _ in range(9)]
        assert [(await each).offset for each in sent] == [*range(1, 10)]
        assert max(len(batch) for batch in broker.partition().batches) <= 1_000


async def test_a_partition_that_is_gone_ends_the_call() -> None:
    """A topic may be recreated with fewer partitions while a call waits for memory."""

    def third(topic: TopicInfo, key: bytes | None, value: bytes | None) -> int | None:
        return 2

    options: dict[str, Any] = {"request_timeout_ms": 200, "delivery_timeout_ms": 300, **QUICK}
    async with (
        FakeBroker({"t": 3}) as broker,
        Producer(broker.address, partitioner=third, buffer_memory=1_000, **options) as target,
    ):
        await target.partitions_for("t")
        broker.topics["t"] = 1
        broker.will(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 100)
        with pytest.raises(TopicUnavailable, match="topic t has no partition 2, expected 0 to 0"):
            await target.send_many("t", [b"x" * 100] * 50)


@pytest.mark.parametrize(
    ("values", "keys", "kind"),
    [
        ([b"", "text"], None, TypeError),
        ([b""], [3], TypeError),
        ([b"", b""], [b""], ValueError),
        ([b"", b"x" * 2_000_000], None, RecordTooLarge),
    ],
)
async def test_one_invalid_record_refuses_all(
    values: list[Any], keys: list[Any] | None, kind: type[Exception]
) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        with pytest.raises(kind):
            await target.send_many("t", values, keys)
        assert (await target.send_and_wait("t", b"next")).offset == 0


async def test_memory_that_stays_full_ends_the_call_and_names_the_accepted_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        options = {"buffer_memory": 1_000, "max_block_ms": 200, "batch_size": 300}
        target = producer(broker, **options)
        async with target:
            await target.partitions_for("t")
            broker.will(ApiKey.PRODUCE, *[NEVER_ANSWER] * 10)
            with pytest.raises(BufferExhausted) as caught:
                await target.send_many("t", [b"%d" % number * 100 for number in range(9)])
            accepted = caught.value.accepted
            assert 1 <= accepted < 9
            broker.faults.clear()
            broker.drop_connections()
            await target.flush()
        assert broker.partition().values() == [b"%d" % number * 100 for number in range(accepted)]


async def test_a_cancelled_call_has_accepted_its_first_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, buffer_memory=1_000, batch_size=300) as target:
            await target.partitions_for("t")
            broker.will(ApiKey.PRODUCE, refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
            sending = asyncio.ensure_future(target.send_many("t", [b"x" * 100] * 50))
            await loop_turns(3)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert (await target.send_and_wait("t", b"last")).offset > 0
        values = broker.partition().values()
        assert values == [b"x" * 100] * (len(values) - 1) + [b"last"]


async def test_a_failed_batch_fails_its_records_only() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, batch_size=300) as target:
        await target.send_and_wait("t", b"")
        broker.will(ApiKey.PRODUCE, BEHAVE, refuse(ErrorCode.INVALID_TIMESTAMP))
        many = await target.send_many("t", [b"x" * 100] * 6)
        with pytest.raises(DeliveryFailed, match="INVALID_TIMESTAMP"):
            await many
        failed = [each.exception() is not None for each in many]
        assert failed == [False, False, True, True, False, False]


async def test_no_record_of_many_is_accepted_by_a_closed_producer() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker) as target:
            assert await (await target.send_many("t", [])) == []
        with pytest.raises(Closed):
            await target.send_many("t", [b""])


@pytest.mark.parametrize("count", [1, 40])
async def test_other_tasks_run_while_large_batches_are_compressed(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    compressed: Counter[int] = Counter()

    def counted(batch: ProducerBatch, codec: Codec) -> Generator[int, None, None]:
        for size in compress_batch(batch, codec):
            compressed[turns] += size
            yield size

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(sender, "compress_batch", counted)
    options: dict[str, Any] = {"batch_size": 2**21, "max_request_size": 2**22, "linger_ms": 20}
    async with (
        FakeBroker({"t": count}) as broker,
        producer(broker, compression_type="gzip", **options) as target,
    ):
        await target.partitions_for("t")
        counting = asyncio.ensure_future(count_turns())
        text = b"some text that repeats " * 1_000
        for partition in range(count):
            await target.send_many("t", [text] * (80 // count), partition=partition)
        await target.flush()
        counting.cancel()
        stored = [broker.partition("t", number).values() for number in range(count)]
    assert stored == [[text] * (80 // count)] * count
    assert max(compressed.values()) < sender.COMPRESSED_AT_ONCE + 64 * 1024


# Failures without a waiting task


async def test_records_that_fail_without_a_waiting_task_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=5) as target:
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_TIMESTAMP))
        for value in numbered(3):
            await target.send("t", value)
        await target.flush()
        (line,) = [line for line in caplog.messages if line.startswith("records not delivered")]
        assert "partition=t-0 records=3" in line
        assert "INVALID_TIMESTAMP" in line


async def test_a_cancelled_task_does_not_count_as_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=60_000) as target:
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_TIMESTAMP))
        waiting = asyncio.ensure_future(await target.send("t", b""))
        await loop_turns(2)
        waiting.cancel()
        await target.flush()
        assert "records not delivered partition=t-0 records=1" in caplog.text


async def test_records_that_fail_for_a_waiting_task_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_TIMESTAMP))
        with pytest.raises(DeliveryFailed):
            await target.send_and_wait("t", b"")
        assert "records not delivered" not in caplog.text


# The application's partitioner


def by_value(topic: TopicInfo, key: bytes | None, value: bytes | None) -> int | None:
    """Choose the partition that the value names; by default for a value without a number."""
    assert topic.name == "t"
    return int(value) if value is not None and value.isdigit() else None


async def test_every_call_asks_the_partitioner() -> None:
    async with (
        FakeBroker({"t": 3}) as broker,
        Producer(broker.address, partitioner=by_value, linger_ms=5) as target,
    ):
        sent = [await target.send("t", b"%d" % number) for number in (2, 0, 1, 2)]
        sent += [target.send_nowait("t", b"%d" % number, key=b"k") for number in (1, 0)]
        assert [(await each).partition for each in sent] == [2, 0, 1, 2, 1, 0]
        many = await target.send_many("t", [b"1", b"x", b"2", b"0"], [b"a", b"b", b"c", b"d"])
        expected = [1, partition_of_key(b"b", 3), 2, 0]
        assert [each.partition for each in await many] == expected
        assert (await target.send_and_wait("t", b"1", partition=0)).partition == 0
        assert (await target.send_and_wait("t", b"y")).partition in range(3)


async def test_the_partitioner_is_called_once_for_each_record() -> None:
    calls = itertools.count()

    def in_turn(topic: TopicInfo, key: bytes | None, value: bytes | None) -> int | None:
        return next(calls) % len(topic.partitions)

    options: dict[str, Any] = {"batch_size": 200, "linger_ms": 5}
    async with (
        FakeBroker({"t": 3}) as broker,
        Producer(broker.address, partitioner=in_turn, **options) as target,
    ):
        sent = [await target.send("t", b"x" * 50) for _ in range(10)]
        sent += [target.send_nowait("t", b"x" * 50) for _ in range(10)]
        sent += await target.send_many("t", [b"x" * 50] * 10)
        assert [(await each).partition for each in sent] == [n % 3 for n in range(30)]


async def test_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    text = "the partitioner chose partition 3 of topic t, expected None or a partition from"
    options: dict[str, Any] = {"buffer_memory": 1_000, "max_block_ms": 2_000}
    async with (
        FakeBroker({"t": 3}) as broker,
        Producer(broker.address, partitioner=by_value, **options) as target,
    ):
        await target.send_and_wait("t", b"0")
        for _ in range(20):  # a refused record takes no memory
            for call in (target.send("t", b"3"), target.send_many("t", [b"0", b"3"])):
                with pytest.raises(ValueError, match=text):
                    await call
            with pytest.raises(ValueError, match=text):
                target.send_nowait("t", b"3")
        assert (await target.send_and_wait("t", b"x" * 900)).offset >= 0


# send_arrow


async def test_the_rows_of_a_record_batch_are_sent() -> None:
    columns: dict[str, Any] = {"key": ["a", None], "value": [None, b"\xff"]}
    batch = pyarrow.record_batch(columns)
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        assert len(await (await target.send_arrow("t", batch))) == 2
        assert records_of(broker, 0) == [(b"a", None), (None, b"\xff")]
        sliced = pyarrow.record_batch({"value": ["x", "y", "z"]}).slice(1, 1)
        await (await target.send_arrow("t", sliced, partition=0))
        assert records_of(broker, 0)[2:] == [(None, b"y")]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"key": [b"k"]}, r"has the columns \['key'\], expected \['value'\] or"),
        ({"value": [b"v"], "topic": ["t"]}, "use select"),
        ({"value": [1]}, "the column value has the type int64, expected binary or string"),
    ],
)
async def test_other_columns_are_refused(columns: dict[str, Any], text: str) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        with pytest.raises(ValueError, match=text):
            await target.send_arrow("t", pyarrow.record_batch(columns))


async def test_rows_that_were_polled_are_sent_again() -> None:
    async with FakeBroker({"t": 1, "u": 1}) as broker:
        async with producer(broker) as target:
            await (await target.send_many("t", numbered(3), [b"k", None, b"l"]))
            async with Consumer(broker.address) as consumer:
                consumer.assign([TopicPartition("t", 0)])
                consumer.seek(TopicPartition("t", 0), 0)
                (batch,) = (await consumer.poll_arrow(5_000)).values()
            await (await target.send_arrow("u", batch.select(["key", "value"])))
        assert records_of(broker, 0) == [(b"k", b"0"), (None, b"1"), (b"l", b"2")]
        assert broker.partition("u").values() == numbered(3)
