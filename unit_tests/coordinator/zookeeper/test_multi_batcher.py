"""Tests of the batcher that sends the writes of many callers in one multi. Each write has its
own checks and gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.coordinator.zookeeper.limits import REQUEST_BYTES_MAX, operation_bytes
from pybroker.coordinator.zookeeper.multi_batcher import (
    BYTES_PER_MULTI_MAX,
    OPERATIONS_PER_MULTI_MAX,
    MultiBatcher,
)
from pybroker.errors import (
    BadVersion,
    ConnectionLoss,
    MultiFailed,
    NodeExists,
    NoNode,
    RequestTooLarge,
    SessionExpired,
)
from pybroker.ports import CheckOp, CoordOp, CreateOp, NodeStat, OpResult, SetOp
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import PATIENCE_S, in_time, until


class Counting(MemoryCoord):
    """A client that records the operations of each multi. Multis wait while `gate` is closed."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.sent: list[Sequence[CoordOp]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def sizes(self) -> list[int]:
        return [len(ops) for ops in self.sent]

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        self.sent.append(ops)
        await self.gate.wait()
        return await super().multi(ops)


@pytest.fixture
async def coord() -> Counting:
    coord = Counting(MemoryTree())
    await coord.start()
    for number in range(5):
        await coord.create(f"/fence{number}")
        await coord.create(f"/node{number}", b"0")
    return coord


def write(number: int, data: bytes, version: int = 0) -> list[CoordOp]:
    return [CheckOp(f"/fence{number}", version), SetOp(f"/node{number}", data)]


async def value(coord: Counting, number: int) -> bytes:
    return (await coord.get(f"/node{number}"))[0]


# ---- all together


async def test_writes_of_one_tick_share_a_multi(coord: Counting) -> None:
    batcher = MultiBatcher(coord)
    await asyncio.gather(*(batcher.multi(write(number, b"1")) for number in range(5)))
    assert coord.sizes == [10]
    assert {await value(coord, number) for number in range(5)} == {b"1"}


async def test_each_caller_gets_the_results_of_its_own_operations(coord: Counting) -> None:
    batcher = MultiBatcher(coord)
    stored, nothing, made = await asyncio.gather(
        batcher.multi(write(0, b"1")),
        batcher.multi([CheckOp("/fence1", 0)]),
        batcher.multi([CreateOp("/a"), CreateOp("/b"), SetOp("/b", b"1")]),
    )
    assert coord.sizes == [6]
    check, stat = stored
    assert check is None and isinstance(stat, NodeStat) and stat.version == 1
    assert nothing == [None]
    assert made[:2] == ["/a", "/b"] and isinstance(made[2], NodeStat)


async def test_a_multi_holds_a_shared_check_once_and_before_all_writes(coord: Counting) -> None:
    batcher, shared = MultiBatcher(coord), CheckOp("/fence1", 0)
    results = await asyncio.gather(
        *(batcher.multi([CreateOp(path)], checks=[shared]) for path in ("/a", "/b", "/c"))
    )
    assert results == [["/a"], ["/b"], ["/c"]]
    assert coord.sizes == [1 + 3]


async def test_a_failed_check_refuses_only_the_writes_that_have_it(
    coord: Counting,
) -> None:
    batcher = MultiBatcher(coord)
    holds, refuses = CheckOp("/fence1", 0), CheckOp("/fence1", 7)
    refused, taken, faulty = await asyncio.gather(
        batcher.multi([CreateOp("/a")], checks=[refuses]),
        batcher.multi([CreateOp("/b")], checks=[holds]),
        batcher.multi([CreateOp("/c"), CreateOp("/fence1")], checks=[holds]),
        return_exceptions=True,
    )
    assert isinstance(refused, MultiFailed) and isinstance(refused.cause, BadVersion)
    assert isinstance(faulty, MultiFailed) and isinstance(faulty.cause, NodeExists)
    assert (refused.index, taken, faulty.index) == (-1, ["/b"], 1)
    assert await coord.exists("/a") is None and await coord.exists("/c") is None
    assert coord.sizes == [2 + 4, 2, 2, 3]


async def test_writes_requested_while_multis_are_under_way_share_the_next_multi(
    coord: Counting,
) -> None:
    batcher = MultiBatcher(coord, at_once=1)
    first = asyncio.ensure_future(batcher.multi(write(0, b"1")))
    await until(lambda: coord.sizes)
    await asyncio.gather(first, *(batcher.multi(write(number, b"2")) for number in range(1, 5)))
    assert coord.sizes == [2, 8]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_no_more_multis_are_under_way_than_allowed(coord: Counting, at_once: int) -> None:
    batcher = MultiBatcher(coord, at_once=at_once)
    coord.gate.clear()
    asked = []
    for number in range(4):
        asked.append(asyncio.ensure_future(batcher.multi(write(number, b"1"))))
        await idle()
    assert coord.sizes == [2] * at_once
    coord.gate.set()
    await in_time(asyncio.gather(*asked))
    assert coord.sizes == [*[2] * at_once, 2 * (4 - at_once)]


async def test_every_requested_write_is_sent(coord: Counting) -> None:
    batcher = MultiBatcher(coord)

    async def ask(number: int, turns: int) -> None:
        for value in range(30):
            await batcher.multi(write(number, str(value).encode()))
            await loop_turns(turns)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(ask(number, number) for number in range(5)))
    assert {await value(coord, number) for number in range(5)} == {b"29"}


# ---- refused: one by one


async def test_a_refused_write_does_not_stop_the_others(coord: Counting) -> None:
    batcher = MultiBatcher(coord)
    results = await asyncio.gather(
        batcher.multi(write(0, b"1")),
        batcher.multi(write(1, b"1", version=7)),
        batcher.multi([CheckOp("/fence2", 0), SetOp("/missing", b"")]),
        batcher.multi(write(3, b"1")),
        return_exceptions=True,
    )
    deposed, missing = results[1], results[2]
    assert isinstance(deposed, MultiFailed) and isinstance(deposed.cause, BadVersion)
    assert isinstance(missing, MultiFailed) and isinstance(missing.cause, NoNode)
    assert (deposed.index, missing.index) == (0, 1)
    assert [await value(coord, number) for number in range(4)] == [b"1", b"0", b"0", b"1"]
    assert coord.sizes == [8, 2, 2, 2, 2]


async def test_a_write_that_is_refused_alone_is_not_sent_again(coord: Counting) -> None:
    with pytest.raises(MultiFailed):
        await MultiBatcher(coord).multi(write(1, b"1", version=7))
    assert coord.sizes == [2]


async def test_a_write_that_is_not_wanted_any_more_is_not_sent_alone(coord: Counting) -> None:
    batcher, is_wanted = MultiBatcher(coord), True
    coord.gate.clear()
    asked = [
        asyncio.ensure_future(batcher.multi(write(0, b"1"), lambda: is_wanted)),
        asyncio.ensure_future(batcher.multi(write(1, b"1", version=7))),
        asyncio.ensure_future(batcher.multi(write(2, b"1"))),
    ]
    await until(lambda: coord.sizes)
    is_wanted = False
    coord.gate.set()
    results = await in_time(asyncio.gather(*asked, return_exceptions=True))
    assert list(map(type, results)) == [ConnectionLoss, MultiFailed, list]
    assert [await value(coord, number) for number in range(3)] == [b"0", b"0", b"1"]


# ---- a lost reply: the outcome is unknown


@pytest.mark.parametrize("applied", [True, False])
async def test_after_a_lost_reply_each_caller_gets_the_error(
    coord: Counting, applied: bool
) -> None:
    batcher = MultiBatcher(coord)
    coord.lose_reply(applied=applied)
    results = await asyncio.gather(
        *(batcher.multi(write(number, b"1")) for number in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [ConnectionLoss] * 3
    assert coord.sizes == [6], "nothing is sent again"
    assert [await value(coord, n) for n in range(3)] == [b"1" if applied else b"0"] * 3
    await batcher.multi(write(4, b"1"))


async def test_each_caller_gets_the_error_of_an_expired_session(coord: Counting) -> None:
    await coord.close()
    batcher = MultiBatcher(coord)
    results = await asyncio.gather(
        *(batcher.multi(write(number, b"1")) for number in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [SessionExpired] * 3


# ---- limits


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 60_000)), max_size=60))
def test_multis_keep_the_order_and_both_limits(sizes: list[tuple[int, int]]) -> None:
    writes: list[list[CoordOp]] = [
        [CreateOp(f"/n{index}-0", bytes(size)), *[CheckOp("/", -1)] * (count - 1)]
        for index, (count, size) in enumerate(sizes)
    ]
    sent: list[Sequence[CoordOp]] = []

    class Service:
        async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
            sent.append(ops)
            return [None] * len(ops)

    async def ask() -> None:
        batcher = MultiBatcher(Service(), at_once=1)
        await asyncio.gather(*(batcher.multi(ops) for ops in writes))

    asyncio.run(ask())
    assert [op for ops in sent for op in ops] == [op for ops in writes for op in ops]
    for ops in sent:
        assert len(ops) <= OPERATIONS_PER_MULTI_MAX
        is_one = sum(isinstance(op, CreateOp) for op in ops) == 1
        assert is_one or sum(map(operation_bytes, ops)) <= BYTES_PER_MULTI_MAX


async def test_a_multi_holds_1000_operations_or_256_kib(coord: Counting) -> None:
    batcher = MultiBatcher(coord, at_once=1)
    await coord.create("/many")
    many = [[CreateOp(f"/many/{n}-{m}") for m in range(250)] for n in range(5)]
    large = [SetOp(f"/node{number}", bytes(100 * 1024)) for number in range(5)]
    await asyncio.gather(*(batcher.multi(ops) for ops in many))
    assert coord.sizes == [1000, 250]
    coord.sent.clear()
    await asyncio.gather(*(batcher.multi([op]) for op in large))
    assert coord.sizes == [2, 2, 1]


async def test_a_batcher_may_put_fewer_operations_into_a_multi(coord: Counting) -> None:
    batcher = MultiBatcher(coord, at_once=1, operations_max=4)
    await asyncio.gather(*(batcher.multi(write(number, b"1")) for number in range(5)))
    assert coord.sizes == [4, 4, 2]


async def test_a_write_above_512_kib_is_refused_and_the_others_are_made(coord: Counting) -> None:
    batcher = MultiBatcher(coord)
    results = await asyncio.gather(
        batcher.multi(write(0, b"1")),
        batcher.multi(write(1, bytes(REQUEST_BYTES_MAX))),
        batcher.multi(write(2, bytes(REQUEST_BYTES_MAX // 2))),
        batcher.multi(write(3, b"1")),
        return_exceptions=True,
    )
    assert list(map(type, results)) == [list, RequestTooLarge, list, list]
    assert [len(await value(coord, n)) for n in range(4)] == [1, 1, REQUEST_BYTES_MAX // 2, 1]


# ---- callers that are cancelled


async def test_a_caller_cancelled_before_its_write_is_sent_changes_nothing(
    coord: Counting,
) -> None:
    batcher = MultiBatcher(coord)
    asked = [asyncio.ensure_future(batcher.multi(write(number, b"1"))) for number in range(3)]
    await loop_turns(1)
    asked[1].cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert [await value(coord, number) for number in range(3)] == [b"1", b"0", b"1"]
    assert coord.sizes == [4]


async def test_a_caller_cancelled_during_its_write_does_not_affect_other_callers(
    coord: Counting,
) -> None:
    batcher = MultiBatcher(coord)
    coord.gate.clear()
    asked = [asyncio.ensure_future(batcher.multi(write(number, b"1"))) for number in range(3)]
    await until(lambda: coord.sizes)
    asked[1].cancel()
    coord.gate.set()
    await in_time(asyncio.gather(asked[0], asked[2]))
    assert [await value(coord, number) for number in range(3)] == [b"1"] * 3
    await in_time(batcher.multi(write(4, b"1")))


# ---- order


@pytest.mark.parametrize("is_refused", [False, True])
async def test_writes_take_effect_in_the_order_of_the_requests(
    coord: Counting, is_refused: bool
) -> None:
    batcher = MultiBatcher(coord, at_once=1)
    asked = [batcher.multi([SetOp("/node0", b"%d" % number)]) for number in range(250)]
    if is_refused:
        asked.insert(100, batcher.multi(write(1, b"1", version=7)))
    results = await asyncio.gather(*asked, return_exceptions=True)
    stats = [result[0] for result in results if isinstance(result, list)]
    assert [stat.version for stat in stats if isinstance(stat, NodeStat)] == list(range(1, 251))
    assert await value(coord, 0) == b"249"
