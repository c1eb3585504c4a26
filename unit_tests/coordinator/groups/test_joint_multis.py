"""Shards that share multis: each part under its own fence, and with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pybroker.coordinator.groups.joint_multis import OPERATIONS_PER_MULTI_MAX, JointMultis
from pybroker.errors import BadVersion, ConnectionLoss, MultiFailed, NoNode
from pybroker.ports import CheckOp, CoordOp, CreateOp, OpResult, SetOp
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import PATIENCE_S, until


class Counting(MemoryCoord):
    """Notes how many operations each multi has."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.sizes: list[int] = []

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        self.sizes.append(len(ops))
        return await super().multi(ops)


@pytest.fixture
async def coord() -> Counting:
    coord = Counting(MemoryTree())
    await coord.start()
    for number in range(5):
        await coord.create(f"/fence{number}")
        await coord.create(f"/node{number}", b"0")
    return coord


def part(number: int, data: bytes, version: int = 0) -> list[CoordOp]:
    return [CheckOp(f"/fence{number}", version), SetOp(f"/node{number}", data)]


async def value(coord: Counting, number: int) -> bytes:
    return (await coord.get(f"/node{number}"))[0]


async def test_what_is_asked_for_at_a_time_is_one_multi(coord: Counting) -> None:
    joint = JointMultis(coord)
    await asyncio.gather(*(joint.multi(part(number, b"1")) for number in range(5)))
    assert coord.sizes == [10]
    assert {await value(coord, number) for number in range(5)} == {b"1"}


async def test_while_one_is_under_way_the_next_gather(coord: Counting) -> None:
    joint = JointMultis(coord)
    first = asyncio.ensure_future(joint.multi(part(0, b"1")))
    await until(lambda: coord.sizes)
    await asyncio.gather(first, *(joint.multi(part(number, b"2")) for number in range(1, 5)))
    assert coord.sizes == [2, 8]


async def test_nobody_is_left_behind_whenever_he_asks(coord: Counting) -> None:
    joint = JointMultis(coord)

    async def ask(number: int, turns: int) -> None:
        for value in range(30):
            await joint.multi(part(number, str(value).encode()))
            await loop_turns(turns)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(ask(number, number) for number in range(5)))
    assert {await value(coord, number) for number in range(5)} == {b"29"}


async def test_who_is_refused_does_not_stop_the_others(coord: Counting) -> None:
    joint = JointMultis(coord)
    results = await asyncio.gather(
        joint.multi(part(0, b"1")),
        joint.multi(part(1, b"1", version=7)),
        joint.multi([CheckOp("/fence2", 0), SetOp("/missing", b"")]),
        joint.multi(part(3, b"1")),
        return_exceptions=True,
    )
    assert results[0] is None and results[3] is None
    deposed, missing = results[1], results[2]
    assert isinstance(deposed, MultiFailed) and isinstance(deposed.cause, BadVersion)
    assert isinstance(missing, MultiFailed) and isinstance(missing.cause, NoNode)
    assert (deposed.index, missing.index) == (0, 1)
    assert [await value(coord, number) for number in range(4)] == [b"1", b"0", b"0", b"1"]


async def test_all_hear_of_a_lost_connection(coord: Counting) -> None:
    joint = JointMultis(coord)
    coord.lose_reply()
    results = await asyncio.gather(
        *(joint.multi(part(number, b"1")) for number in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [ConnectionLoss] * 3
    await joint.multi(part(4, b"1"))


async def test_who_was_cancelled_before_it_was_sent_changes_nothing(coord: Counting) -> None:
    joint = JointMultis(coord)
    tasks = [asyncio.ensure_future(joint.multi(part(number, b"1"))) for number in range(3)]
    await loop_turns(1)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [await value(coord, number) for number in range(3)] == [b"1", b"0", b"1"]


async def test_no_multi_is_larger_than_it_may_be(coord: Counting) -> None:
    joint = JointMultis(coord)
    await coord.create("/many")
    parts = [[CreateOp(f"/many/{n}-{m}") for m in range(300)] for n in range(7)]
    large = [SetOp(f"/node{number}", bytes(100_000)) for number in range(5)]
    await asyncio.gather(*(joint.multi(ops) for ops in parts), *(joint.multi([op]) for op in large))
    assert max(coord.sizes) <= OPERATIONS_PER_MULTI_MAX
    assert coord.sizes == [900, 900, 302, 2, 1]
