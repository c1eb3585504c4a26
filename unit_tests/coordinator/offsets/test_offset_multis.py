"""Tests of the multis that write committed offsets: several offsets in one multi, with a fence
check and the missing parent nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import CheckOp, CoordOp, CreateOp, OpResult, SetOp
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.coordinator.offsets.offset_stage import FENCE, GROUP, Stage, tp
from unit_tests.patience import until

NONE = ErrorCode.NONE


def seen_multis(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[CoordOp]]:
    """Return a list to which the operations of each later multi are added."""
    multi, seen = stage.coord.multi, list[Sequence[CoordOp]]()

    async def watched(ops: Sequence[CoordOp]) -> list[OpResult]:
        seen.append(ops)
        return await multi(ops)

    monkeypatch.setattr(stage.coord, "multi", watched)
    return seen


async def test_commits_of_one_tick_share_a_multi(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    for number in range(20):
        await stage.commit(f"g{number}", t=1)
    multis = seen_multis(stage, monkeypatch)
    await asyncio.gather(*(stage.commit(f"g{number}", t=2) for number in range(20)))
    offsets = [paths.offset(f"g{number}", tp("t-0")) for number in range(20)]
    assert multis == [[CheckOp(FENCE, 0), *(SetOp(path, b"2") for path in offsets)]]
    first = asyncio.ensure_future(stage.commit("g0", t=4))
    await until(lambda: len(multis) == 2)
    later = [asyncio.ensure_future(stage.commit(f"g{n}", t=5)) for n in range(20)]
    await asyncio.gather(first, *later)
    assert [len(ops) for ops in multis[1:]] == [2, 21]
    assert stage.node("t-0", "g0") == b"5"


async def test_the_first_commit_of_a_group_is_one_multi(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper syncs each multi to disk, so the parent nodes are created in the same multi."""
    stage = await Stage.begin(ZookeeperOffsets)
    multis = seen_multis(stage, monkeypatch)
    offsets = {TopicPartition("t", n): CommittedOffset(n, 1) for n in range(100)}
    codes = await stage.store.commit(GROUP, offsets)
    assert set(codes.values()) == {NONE}
    (ops,) = multis
    made = [op.path for op in ops if isinstance(op, CreateOp)]
    above = ["", "/g", "/g/t"]
    assert set(made) == {
        *(f"/pybroker/offsets{name}" for name in above),
        *("/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t"),
        *(path(GROUP, key) for key in offsets for path in (paths.offset, paths.offset_details)),
    }
    assert len(made) == len(set(made))


async def test_every_write_checks_the_fence_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    seen = seen_multis(stage, monkeypatch)
    for name in ("create", "set", "delete"):
        monkeypatch.delattr(MemoryCoord, name)
    await stage.commit(GROUP, a=1)
    await stage.commit(GROUP, a=2)
    await stage.store.delete(GROUP, None)
    assert seen
    assert all(ops[0] == CheckOp(FENCE, 0) for ops in seen)
    assert SetOp(paths.offset(GROUP, tp("a-0")), b"2") in [op for ops in seen for op in ops]
