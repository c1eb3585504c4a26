"""Tests that a call of the client may be cancelled at each of its awaits: no record is lost,
doubled or reordered, no committed offset moves backwards, and later calls work.

Each test cancels the call after 0, 1, 2, ... turns of the event loop, until a call ends before it
is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from pybroker.client.consumer import Consumer
from pybroker.client.deliveries import Delivery
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from unit_tests.client.fake_broker import LOSE_ANSWER, LOSE_REQUEST, FakeBroker, refuse
from unit_tests.client.group_readers import a_group, member, tp
from unit_tests.client.held_logs import QUICK, batch, holding
from unit_tests.client.test_producer import producer
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import PATIENCE_S

TURNS_MAX: Final = 10_000


async def cancelled_after(turns: int, call: Awaitable[object]) -> bool:
    """Cancel the call after this number of turns. Return whether it was cancelled, and False if it
    has ended before."""
    task = asyncio.ensure_future(call)
    await loop_turns(turns)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


async def at_each_turn(attempt: Callable[[int], Awaitable[bool]]) -> int:
    """Call `attempt` with 0, 1, 2, ... turns until it returns False. Return the last number."""
    async with asyncio.timeout(10 * PATIENCE_S):
        for turns in range(TURNS_MAX):
            if not await attempt(turns):
                return turns
    raise AssertionError(f"the call did not end within {TURNS_MAX} turns")


@pytest.mark.parametrize(
    "faults", [[], [LOSE_ANSWER], [LOSE_REQUEST]], ids=["none", "answer", "request"]
)
async def test_a_cancelled_send_stores_its_record_once_or_never(faults: list[Any]) -> None:
    """The first send of each producer waits for metadata, the next ones wait for memory."""

    async def attempt(turns: int) -> bool:
        async with FakeBroker({"t": 1}) as broker:
            broker.will(ApiKey.PRODUCE, *faults)
            options: dict[str, Any] = {"buffer_memory": 300, "batch_size": 100}
            async with producer(broker, **options) as target:
                was_cancelled = await cancelled_after(turns, _send_in_turn(target.send))
                await target.send_and_wait("t", b"last")
            values = [int(value or b"") for value in broker.partition().values()[:-1]]
            assert broker.partition().values()[-1] == b"last"
            assert values == [*range(len(values))], "each once, and in the order of the calls"
            assert was_cancelled or len(values) == 6
        return was_cancelled

    assert await at_each_turn(attempt) > 5


async def _send_in_turn(send: Callable[..., Awaitable[Delivery]]) -> None:
    for number in range(6):
        await send("t", b"%0100d" % number)


async def test_a_cancelled_flush_loses_no_record() -> None:
    async def attempt(turns: int) -> bool:
        async with FakeBroker({"t": 1}) as broker:
            broker.will(ApiKey.PRODUCE, refuse(ErrorCode.NOT_ENOUGH_REPLICAS), LOSE_ANSWER)
            async with producer(broker, linger_ms=60_000, batch_size=0) as target:
                deliveries = [await target.send("t", b"%d" % number) for number in range(4)]
                was_cancelled = await cancelled_after(turns, target.flush())
                await target.flush()
                assert [(await each).offset for each in deliveries] == [0, 1, 2, 3]
            assert broker.partition().values() == [b"0", b"1", b"2", b"3"]
        return was_cancelled

    assert await at_each_turn(attempt) > 5


async def test_a_cancelled_getmany_loses_and_doubles_no_record() -> None:
    """The consumer reads with an own position; the log has three batches."""
    values = [b"%d" % number for number in range(9)]

    async def attempt(turns: int) -> bool:
        async with FakeBroker({"t": 1}) as broker:
            for start in range(0, 9, 3):
                broker.partition().append(batch(*values[start : start + 3]))
            broker.partition_faults.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            options: dict[str, Any] = {**QUICK, "auto_offset_reset": "earliest"}
            seen: list[bytes | None] = []
            async with Consumer(broker.address, **options) as consumer:
                consumer.assign([tp(0)])
                was_cancelled = await cancelled_after(turns, _read(consumer, seen, 2))
                if not was_cancelled:
                    assert len(seen) == 2
                while len(seen) < len(values):
                    await _read(consumer, seen, 2)
                assert await consumer.position(tp(0)) == len(values)
            assert seen == values
        return was_cancelled

    assert await at_each_turn(attempt) > 5


async def _read(consumer: Consumer, seen: list[bytes | None], count: int) -> None:
    for records in (await consumer.getmany(timeout_ms=60_000, max_records=count)).values():
        seen.extend(record.value for record in records)


async def test_a_cancelled_getmany_of_a_member_loses_and_doubles_no_record() -> None:
    values = [b"%d" % number for number in range(6)]

    async def attempt(turns: int) -> bool:
        seen: list[bytes | None] = []
        async with a_group(t=1) as group:
            holding(group.broker.partition(), batch(*values))
            async with member(group, enable_auto_commit=False) as consumer:
                consumer.subscribe(["t"])
                was_cancelled = await cancelled_after(turns, _read(consumer, seen, 2))
                while len(seen) < len(values):
                    await _read(consumer, seen, 2)
        assert seen == values
        return was_cancelled

    assert await at_each_turn(attempt) > 20


async def test_a_cancelled_commit_commits_the_offsets_or_nothing() -> None:
    async def attempt(turns: int) -> bool:
        async with a_group(t=1) as group:
            holding(group.broker.partition(), batch(b"a", b"b", b"c"))
            async with member(group, enable_auto_commit=False) as consumer:
                consumer.subscribe(["t"])
                seen: list[bytes | None] = []
                await _read(consumer, seen, 1)
                group.broker.will(ApiKey.OFFSET_COMMIT, LOSE_ANSWER)
                was_cancelled = await cancelled_after(turns, consumer.commit())
                assert all(commit == {tp(0): 1} for commit in group.commits)
                await _read(consumer, seen, 1)
                await consumer.commit()
                assert group.commits[-1] == {tp(0): 2}
                offsets = [commit[tp(0)] for commit in group.commits]
                assert offsets == sorted(offsets), "no late commit lowers the offset"
            assert seen == [b"a", b"b"]
        return was_cancelled

    assert await at_each_turn(attempt) > 3
