"""Tests that `poll_arrow` returns the same records as `getmany`, with the same positions, commits
and errors."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from pybroker.client import arrow
from pybroker.client.consumer import Consumer
from pybroker.client.errors import DamagedRecords
from pybroker.model import TopicPartition
from pybroker.records.compression import Codec
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.group_readers import a_group, member, tp
from unit_tests.client.held_logs import (
    SEEN,
    T0,
    T1,
    batch,
    consumer,
    holding,
    holding_transactions,
)
from unit_tests.patience import PATIENCE_S

pytest.importorskip("pyarrow", reason="needs the extra arrow")

Found = list[tuple[int, bytes]]


async def rows(target: Consumer, count: int, max_bytes: int | None = None) -> Found:
    """Return partition and value of the next `count` records; fail if more come."""
    found: Found = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            for key, table in (await target.poll_arrow(1_000, max_bytes)).items():
                table.validate(full=True)
                assert table.num_rows
                assert set(table.column("partition").to_pylist()) == {key.partition}
                values = table.column("value").to_pylist()
                found += [(key.partition, value) for value in values if value is not None]
    assert len(found) == count
    return found


@pytest.mark.parametrize("codec", Codec)
async def test_a_batch_holds_everything_that_getmany_gives(codec: Codec) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b", codec=codec), batch(b"c", codec=codec))
        target.assign([T0])
        async with asyncio.timeout(PATIENCE_S):
            found = await target.poll_arrow(1_000, headers=True)
        assert list(found) == [T0]
        table: Any = found[T0]
        assert table.schema == arrow.arrow_schema(headers=True)
        assert await target.position(T0) == 3
        target.seek(T0, 0)
        async with asyncio.timeout(PATIENCE_S):
            records = (await target.getmany(timeout_ms=1_000))[T0]
        assert table.select(["key", "value", "topic", "offset"]).to_pylist() == [
            {"key": item.key, "value": item.value, "topic": item.topic, "offset": item.offset}
            for item in records
        ]
        assert table.column("timestamp").cast("int64").to_pylist() == [
            item.timestamp * 1_000 for item in records
        ]
        assert table.column("headers").to_pylist() == [
            [{"key": name, "value": value} for name, value in item.headers] for item in records
        ]


async def test_nothing_to_read_is_no_batch() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        target.assign([T0])
        assert await target.poll_arrow(20) == {}


async def test_reading_begins_inside_of_a_batch() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b", b"c"), batch(b"d"))
        target.assign([T0])
        target.seek(T0, 2)
        assert await rows(target, 2) == [(0, b"c"), (0, b"d")]


async def test_it_goes_on_where_getmany_stopped_and_the_other_way_round() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b", b"c"), batch(b"d", b"e"))
        target.assign([T0])
        async with asyncio.timeout(PATIENCE_S):
            assert (await target.getone()).value == b"a"
            assert (await target.getone()).value == b"b"
        assert await rows(target, 1, max_bytes=1) == [(0, b"c")]
        assert await target.position(T0) == 3
        async with asyncio.timeout(PATIENCE_S):
            assert (await target.getone()).value == b"d"
        holding(broker.partition(), batch(b"f"))
        assert await rows(target, 2) == [(0, b"e"), (0, b"f")]


async def test_max_bytes_ends_an_answer_after_a_whole_batch() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        for number in (0, 1):
            log = broker.partition("t", number)
            holding(log, batch(b"x" * 100, b"y" * 100), batch(b"z" * 100))
        target.assign([T0, T1])
        calls: list[list[int]] = []
        async with asyncio.timeout(PATIENCE_S):
            while sum(sum(call) for call in calls) < 6:
                found = await target.poll_arrow(1_000, max_bytes=50)
                calls.append([table.num_rows for table in found.values()])
        assert sorted(calls) == [[1], [1], [2], [2]]
        assert [await target.position(key) for key in (T0, T1)] == [3, 3]


async def test_records_without_content_count_too() -> None:
    """Otherwise records without keys and values would never reach the size limit of an answer."""
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        for _ in range(4):
            holding(broker.partition(), batch(*[b""] * 10))
        target.assign([T0])
        assert len(await rows(target, 40, max_bytes=1)) == 40
        target.seek(T0, 0)
        async with asyncio.timeout(PATIENCE_S):
            found = await target.poll_arrow(1_000, max_bytes=200)
        assert found[T0].num_rows == 10


async def test_a_paused_partition_gives_nothing() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        for number in (0, 1):
            holding(broker.partition("t", number), batch(b"a"))
        target.assign([T0, T1])
        target.pause(T0)
        assert await rows(target, 1) == [(1, b"a")]
        assert await target.poll_arrow(20) == {}
        target.resume(T0)
        assert await rows(target, 1) == [(0, b"a")]


@SEEN
async def test_aborted_records_and_markers_are_left_out(level: str, expected: list[bytes]) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, isolation_level=level) as target:
        holding_transactions(broker.partition())
        target.assign([T0])
        assert await rows(target, len(expected)) == [(0, value) for value in expected]
        assert await target.poll_arrow(20) == {}
        assert await target.position(T0) == 8, "markers are passed, too"


@pytest.mark.parametrize("checked", [True, False])
async def test_damage_is_reported_with_its_offset_after_the_valid_records(checked: bool) -> None:
    """The damage is a wrong checksum or, if checksums are not checked, an invalid record."""
    options = {"check_crcs": checked}
    async with FakeBroker({"t": 1}) as broker, consumer(broker, **options) as target:
        log = broker.partition()
        holding(log, batch(b"a"), batch(b"bbbb", b"b"), batch(b"c"))
        log.batches[1] = log.batches[1].replace(b"\x08bbbb", b"\x10bbbb")
        target.assign([T0])
        assert await rows(target, 1) == [(0, b"a")]
        for _ in range(2):
            with pytest.raises(DamagedRecords, match="checksum" if checked else "record 0 of 2"):
                await target.poll_arrow(1_000)
            assert await target.position(T0) == 1
        target.seek(T0, 3)
        assert await rows(target, 1) == [(0, b"c")]


async def test_without_pyarrow_the_position_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a"))
        target.assign([T0])
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "pyarrow", None)
            arrow._pyarrow.cache_clear()
            arrow._types.cache_clear()
            with pytest.raises(ImportError, match=r"pip install 'pybroker\[arrow\]'"):
                await target.poll_arrow(1_000)
        assert await rows(target, 1) == [(0, b"a")]


# Groups


async def test_positions_are_committed() -> None:
    async with a_group(t=1) as group, member(group, enable_auto_commit=False) as target:
        holding(group.broker.partition(), batch(b"a", b"b"), batch(b"c"))
        target.subscribe(["t"])
        assert len(await rows(target, 3)) == 3
        await target.commit()
        assert group.commits == [{tp(0): 3}]


async def test_an_exception_leaves_records_in_hand_uncommitted() -> None:
    async with a_group(t=1) as group:
        holding(group.broker.partition(), batch(b"a", b"b"), batch(b"c"))
        with pytest.raises(ZeroDivisionError):
            async with member(group) as target:
                target.subscribe(["t"])
                assert len(await rows(target, 2, max_bytes=1)) == 2
                assert len(await rows(target, 1, max_bytes=1)) == 1
                1 // 0  # noqa: B018
        assert group.committed == {TopicPartition("t", 0): 2}


async def test_handled_batches_are_committed_by_the_next_poll() -> None:
    async with a_group(t=1) as group, member(group, auto_commit_interval_ms=0) as target:
        holding(group.broker.partition(), batch(b"a"))
        target.subscribe(["t"])
        await rows(target, 1)
        assert group.committed in ({}, {tp(0): 0})
        async with asyncio.timeout(PATIENCE_S):
            while group.committed != {tp(0): 1}:
                await target.poll_arrow(5)
