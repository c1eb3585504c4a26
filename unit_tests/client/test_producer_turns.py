"""Tests that `send` yields to other tasks of the event loop, and loses no record by it."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.client.producer import SENDS_IN_TURN_MAX
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.test_producer import ONE_RECORD_A_BATCH, numbered, producer, send_all
from unit_tests.idle_loop import loop_turns


class Turns:
    """Counts the turns of the event loop while the context is open."""

    def __init__(self) -> None:
        self.count = 0

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._run())
        await loop_turns(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def test_send_gives_way_whenever_a_batch_is_full() -> None:
    options = {"batch_size": 1_000, "linger_ms": 60_000, "buffer_memory": 100_000}
    async with FakeBroker({"t": 1}) as broker, producer(broker, **options) as target:
        await target.partitions_for("t")
        async with Turns() as turns:
            first = await target.send("t", b"0")
            while not first.done():
                await target.send("t", b"x" * 100)
            sent = turns.count
        await target.flush()
        full = [batch for batch in broker.partition().batches if len(batch) > 700]
        assert sent >= len(full) - 1 >= 1


async def test_send_gives_way_where_no_batch_is_full() -> None:
    options = {"batch_size": 1 << 20, "linger_ms": 60_000}
    async with FakeBroker({"t": 1}) as broker, producer(broker, **options) as target:
        await target.partitions_for("t")
        async with Turns() as turns:
            for _ in range(3 * SENDS_IN_TURN_MAX):
                await target.send("t", b"")
            assert turns.count == 3
        await target.flush()
        assert broker.partition().end == 3 * SENDS_IN_TURN_MAX


async def test_a_send_that_is_cancelled_while_it_gives_way_has_taken_its_record() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, **ONE_RECORD_A_BATCH) as target:
        assert await send_all(target, [b"0"]) == [0]
        sending = asyncio.create_task(target.send("t", b"1"))
        await loop_turns(1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await target.flush()
        assert broker.partition().values() == [b"0", b"1"]
        assert await send_all(target, [b"2"]) == [2]


async def test_records_of_concurrent_sends_keep_the_order_of_the_calls() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, batch_size=200) as target:
        assert await send_all(target, [b"first"]) == [0]
        deliveries = await asyncio.gather(*(target.send("t", value) for value in numbered(100)))
        assert [(await each).offset for each in deliveries] == list(range(1, 101))
