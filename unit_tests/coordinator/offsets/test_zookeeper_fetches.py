"""Tests of `offsets.storage=zookeeper`: the checks that precede the answer to a fetch of
offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from pybroker.coordinator.offsets.zookeeper_store import SYNC_AGE_MAX_S, ZookeeperOffsets
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import CoordOp, NodeStat, OpResult, Watch
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.offsets import offset_stage
from unit_tests.coordinator.offsets.offset_stage import FENCE, GROUP, LaggingCoord, Stage
from unit_tests.coordinator.runtime.vocabulary import MemoryShard
from unit_tests.idle_loop import idle


async def test_a_replaced_coordinator_returns_no_offsets_although_its_zookeeper_lags() -> None:
    """The controller has not notified the broker, and the followers have not fetched from it."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=5)
    assert await stage.fetch() == {"a-0": 5}
    stage.coord.lag()
    await stage.tool.set(FENCE, b"another")
    await stage.edit("a-0", b"8")
    assert stage.shard.log.has_zookeeper_lease
    with pytest.raises(BrokerError) as caught:
        await stage.fetch()
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert "version 1, expected 0" in stage.shard.reasons[0]


async def test_offsets_are_returned_while_only_the_brokers_own_session_is_silent() -> None:
    """The fence proves which broker coordinates. It is read in the same session as the offsets."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=5)
    stage.shard.log.is_connected = False
    assert await stage.fetch() == {"a-0": 5}


class Counted(LaggingCoord):
    """A client that counts its requests to ZooKeeper."""

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
    """Return a stage whose followers have fetched recently and which has answered one fetch, and
    the count of its later requests."""
    monkeypatch.setattr(offset_stage, "LaggingCoord", Counted)
    stage = await Stage.begin(ZookeeperOffsets)
    stage.shard.log.has_follower_fetches = True
    assert isinstance(stage.coord, Counted)
    await stage.commit(GROUP, a=5)
    assert await stage.fetch(GROUP, "a-0") == {"a-0": 5}
    stage.coord.asked.clear()
    return stage, stage.coord.asked


async def test_a_leader_with_a_lease_returns_offsets_without_a_fence_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One ZooKeeper server answers a read alone; a multi waits for the disks of most servers."""
    stage, asked = await counted(monkeypatch)
    for _ in range(10):
        assert await stage.fetch(GROUP, "a-0") == {"a-0": 5}
    assert asked == {"read": 20}
    await stage.commit(GROUP, a=6)
    asked.clear()
    assert await stage.fetch(GROUP, "a-0") == {"a-0": 6}
    assert asked == {"read": 2}


async def test_a_leader_without_a_lease_checks_the_fence_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, asked = await counted(monkeypatch)
    stage.shard.log.has_follower_fetches = False
    for _ in range(3):
        await stage.fetch(GROUP, "a-0")
    assert asked == {"multi": 3, "read": 6}


async def test_a_coordinator_that_lost_its_sessions_returns_no_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sessions are lost: that of the broker, which proves its lease, and that of the
    offsets."""
    stage, asked = await counted(monkeypatch)
    stage.shard.log.is_connected = False
    stage.coord.lag()
    await stage.tool.set(FENCE, b"another")
    await stage.edit("a-0", b"8")
    with pytest.raises(BrokerError) as caught:
        await stage.fetch(GROUP, "a-0")
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert asked["multi"] == 1


async def test_the_fence_is_checked_once_in_each_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new session may be with a ZooKeeper server that lags."""
    stage, asked = await counted(monkeypatch)
    stage.coord.expire()
    stage.coord.lag()
    await stage.edit("a-0", b"8")
    for _ in range(3):
        assert await stage.fetch(GROUP, "a-0") == {"a-0": 8}
    assert asked["multi"] == 1


async def test_edits_by_other_clients_are_returned_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, asked = await counted(monkeypatch)
    stage.coord.lag()
    await stage.edit("a-0", b"8")
    stage.shard.advance(SYNC_AGE_MAX_S + 0.001)
    assert await stage.fetch(GROUP, "a-0") == {"a-0": 8}
    assert (asked["multi"], asked["sync"]) == (0, 1)


async def test_a_coordinator_serves_after_the_earlier_lease_has_ended() -> None:
    """The earlier coordinator answers fetches as long as its followers fetch, and this broker is
    one of the followers."""
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
