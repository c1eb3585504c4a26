"""`offsets.storage=zookeeper`: who may tell what is committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from pybroker.coordinator.offsets.zookeeper_store import EDITS_SEEN_S, ZookeeperOffsets
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import CoordOp, NodeStat, OpResult, Watch
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.offsets import offset_stage
from unit_tests.coordinator.offsets.offset_stage import FENCE, GROUP, LaggingCoord, Stage
from unit_tests.coordinator.runtime.vocabulary import MemoryShard
from unit_tests.idle_loop import idle


async def test_a_replaced_coordinator_returns_no_offsets_although_its_zookeeper_lags() -> None:
    """The controller has not told the broker, and the broker has not heard from its followers."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=5)
    assert await stage.fetch() == {"a-0": 5}
    stage.coord.lag()
    await stage.tool.set(FENCE, b"another")
    await stage.edit("a-0", b"8")
    assert stage.shard.log.is_surely_led
    with pytest.raises(BrokerError) as caught:
        await stage.fetch()
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert "version 1, not 0" in stage.shard.reasons[0]


async def test_offsets_are_told_while_only_the_session_of_the_broker_is_silent() -> None:
    """The fence says who coordinates, and is read in the session that has the offsets."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=5)
    stage.shard.log.is_heard = False
    assert await stage.fetch() == {"a-0": 5}


class Counted(LaggingCoord):
    """Counts what ZooKeeper is asked for."""

    def __init__(self, tree: MemoryTree, *, name: str = "") -> None:
        super().__init__(tree, name=name)
        self.asked: Counter[str] = Counter()

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        self.asked["read"] += 1
        return await super().get(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self.asked["read"] += 1
        return await super().children(path, watch)

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        self.asked["multi"] += 1
        return await super().multi(ops)

    async def sync(self, path: str = "/") -> None:
        self.asked["sync"] += 1
        await super().sync(path)


async def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Stage, Counter[str]]:
    """A shard whose leader has heard of all its followers, and which has told an offset before."""
    monkeypatch.setattr(offset_stage, "LaggingCoord", Counted)
    stage = await Stage.begin(ZookeeperOffsets)
    stage.shard.log.has_heard_all = True
    assert isinstance(stage.coord, Counted)
    await stage.commit(GROUP, a=5)
    assert await stage.fetch(GROUP, "a-0") == {"a-0": 5}
    stage.coord.asked.clear()
    return stage, stage.coord.asked


async def test_a_leader_that_is_certain_tells_offsets_by_reads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read is answered by the member of ZooKeeper that is asked; a multi waits for the disks of
    most of them."""
    stage, asked = await counted(monkeypatch)
    for _ in range(10):
        assert await stage.fetch(GROUP, "a-0") == {"a-0": 5}
    assert asked == {"read": 20}
    await stage.commit(GROUP, a=6)
    asked.clear()
    assert await stage.fetch(GROUP, "a-0") == {"a-0": 6}
    assert asked == {"read": 2}


async def test_a_leader_that_is_not_certain_has_the_fence_checked_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, asked = await counted(monkeypatch)
    stage.shard.log.has_heard_all = False
    for _ in range(3):
        await stage.fetch(GROUP, "a-0")
    assert asked == {"multi": 3, "read": 6}


async def test_a_coordinator_that_lost_its_session_tells_nothing_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the session of the broker, which proves its lease, nor that of the offsets."""
    stage, asked = await counted(monkeypatch)
    stage.shard.log.is_heard = False
    stage.coord.lag()
    await stage.tool.set(FENCE, b"another")
    await stage.edit("a-0", b"8")
    with pytest.raises(BrokerError) as caught:
        await stage.fetch(GROUP, "a-0")
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert asked["multi"] == 1


async def test_the_fence_is_checked_once_in_each_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new session may be at a member that lags."""
    stage, asked = await counted(monkeypatch)
    stage.coord.expire()
    stage.coord.lag()
    await stage.edit("a-0", b"8")
    for _ in range(3):
        assert await stage.fetch(GROUP, "a-0") == {"a-0": 8}
    assert asked["multi"] == 1


async def test_edits_by_others_are_seen_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, asked = await counted(monkeypatch)
    stage.coord.lag()
    await stage.edit("a-0", b"8")
    stage.shard.advance(EDITS_SEEN_S + 0.001)
    assert await stage.fetch(GROUP, "a-0") == {"a-0": 8}
    assert (asked["multi"], asked["sync"]) == (0, 1)


async def test_a_coordinator_serves_when_no_earlier_one_can_be_certain() -> None:
    """The one before tells offsets as long as it heard of its followers, of which this is one."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=5)
    log = stage.shard.log.next_leader()
    log.is_followed.clear()
    await stage.tool.set(FENCE, b"")
    shard = MemoryShard(log=log, clock=stage.shard.clock, fence_version=1)
    await stage.prepare(shard)
    loading = asyncio.ensure_future(shard.load())
    await idle()
    assert not loading.done()
    log.is_followed.set()
    await loading
    assert await stage.fetch() == {"a-0": 5}
