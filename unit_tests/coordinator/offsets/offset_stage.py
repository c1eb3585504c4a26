"""A shard with an offset store and a ZooKeeper in memory.

stage = await Stage.begin(ZookeeperOffsets) assert await stage.commit("g", t=5) == [NONE] assert
await stage.fetch("g") == {"t-0": 5} old = stage.store await stage.take_over() # another
coordinator; the old one has not noticed it
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets.log_store import LoggedOffsets
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import BrokerError, ErrorCode, NodeExists, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import CoordOp, NodeStat, OpResult, Producer, Watch
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.coordinator.runtime.vocabulary import MemoryShard

Store = ZookeeperOffsets | LoggedOffsets
FENCE = paths.coordinator(0)
GROUP = "g"


def tp(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


class LaggingCoord(MemoryCoord):
    """A session with a ZooKeeper server that may lag: after `lag`, reads return the nodes of that
    time until the next write or sync."""

    def __init__(self, tree: MemoryTree, *, name: str = "") -> None:
        super().__init__(tree, name=name)
        self._seen: MemoryTree | None = None

    def lag(self) -> None:
        tree = copy.copy(self._tree)
        tree._nodes = {path: node.copied() for path, node in self._tree._nodes.items()}
        self._seen = tree

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        if self._seen is None:
            return await super().get(path, watch)
        node = self._seen.lookup(path)
        return node.data, node.stat()

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        if self._seen is None:
            return await super().exists(path, watch)
        found = self._seen.node(path)
        return None if found is None else found[1]

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        if self._seen is None:
            return await super().children(path, watch)
        return sorted(self._seen.lookup(path).children)

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        self._seen = None
        return await super().multi(ops)

    async def sync(self, path: str = "/") -> None:
        self._seen = None
        await super().sync(path)


class Stage:
    """Shards of one partition, of which the last has the fence. A test may also write to the
    earlier shards."""

    def __init__(self, kind: Callable[..., Store], timeout_s: float) -> None:
        self.shard = MemoryShard(fence_version=0)
        self.tree = MemoryTree(self.shard.clock)
        self.coord = LaggingCoord(self.tree, name="offsets")
        self.tool = MemoryCoord(self.tree, name="tool")
        self.store: Store
        self._kind = kind
        self._timeout_s = timeout_s

    @classmethod
    async def begin(cls, kind: Callable[..., Store], timeout_s: float = 5.0) -> Stage:
        stage = cls(kind, timeout_s)
        await stage.coord.start()
        await stage.tool.start()
        await ensure(stage.tool, paths.CONSUMERS)
        await ensure(stage.tool, FENCE)
        await stage._load(stage.shard)
        return stage

    async def take_over(self, kind: Callable[..., Store] | None = None) -> None:
        """Make another broker the coordinator, with this kind of store and its own session. The
        previous coordinator has not noticed it yet."""
        self._kind = kind or self._kind
        await self.tool.set(FENCE, b"")
        self.coord = LaggingCoord(self.tree, name="offsets")
        await self.coord.start()
        before = self.shard
        await self._load(
            MemoryShard(
                log=before.log.next_leader(),
                clock=before.clock,
                fence_version=before.fence_version + 1,
            )
        )

    async def prepare(self, shard: MemoryShard) -> None:
        """Create the store of a shard, without loading it."""
        self.shard = shard

        def make(shard: MemoryShard) -> Store:
            return self._kind(shard, self.coord, is_mine=lambda _: True, timeout_s=self._timeout_s)

        self.store = shard.host(make)

    async def _load(self, shard: MemoryShard) -> None:
        await self.prepare(shard)
        await shard.load()

    async def commit(self, group_id: str, **offsets: int) -> list[ErrorCode]:
        """Commit offsets of partition 0 of each topic. Return the error codes."""
        values = {TopicPartition(name, 0): CommittedOffset(at) for name, at in offsets.items()}
        return list((await self.store.commit(group_id, values)).values())

    async def commit_or_code(self, group_id: str, **offsets: int) -> ErrorCode:
        """Commit as `commit` does. Return the code for the whole request, or the first one."""
        try:
            return (await self.commit(group_id, **offsets))[0]
        except BrokerError as error:
            return error.code

    async def commit_in(
        self, producer_id: int, group_id: str = GROUP, /, **offsets: int
    ) -> list[ErrorCode]:
        """Commit offsets as `commit` does, in the open transaction of a producer."""
        values = {
            TopicPartition(name, 0): CommittedOffset(at, commit_ms=self.shard.clock.wall_ms())
            for name, at in offsets.items()
        }
        return list((await self.commit_in_group(group_id, producer_id, values)).values())

    async def commit_in_group(
        self, group_id: str, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        await self.store.prepare(group_id)
        return await self.store.commit_in_transaction(group_id, Producer(producer_id, 0), offsets)

    def pending(self, group_id: str = GROUP) -> set[str]:
        """Return the partitions with an offset of a transaction that is not in effect."""
        return set(map(str, self.store.undecided(group_id)))

    async def fetch(self, group_id: str = GROUP, *keys: str) -> dict[str, int]:
        found = await self.store.fetch(group_id, [tp(key) for key in keys] or None)
        return {str(key): committed.offset for key, committed in found.items()}

    def node(self, key: str, group_id: str = GROUP) -> bytes | None:
        found = self.tree.node(paths.offset(group_id, tp(key)))
        return None if found is None else found[0]

    def details(self, key: str, group_id: str = GROUP) -> bytes | None:
        found = self.tree.node(paths.offset_details(group_id, tp(key)))
        return None if found is None else found[0]

    async def edit(self, key: str, text: bytes, group_id: str = GROUP) -> None:
        """Write the offset node, as a tool or a classic consumer does."""
        path = paths.offset(group_id, tp(key))
        await ensure(self.tool, paths.parent(path))
        with suppress(NodeExists):
            await self.tool.create(path, text)
            return
        await self.tool.set(path, text)

    async def remove(self, path: str) -> None:
        """Remove a node and all nodes below it."""
        with suppress(NoNode):
            for name in await self.tool.children(path):
                await self.remove(f"{path}/{name}")
            await self.tool.delete(path)


def kill_at(stage: Stage, monkeypatch: pytest.MonkeyPatch, count: int, *, applied: bool) -> None:
    """Let the coordinator's session send only `count` more multis. The next one is applied
    (`applied`) or not, and neither it nor a later one is answered."""
    multi = stage.coord.multi
    left = count

    async def cut(ops: Sequence[CoordOp]) -> list[OpResult]:
        nonlocal left
        left -= 1
        if left >= 0:
            return await multi(ops)
        if left == -1 and applied:
            await multi(ops)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("the killed coordinator got an answer")

    monkeypatch.setattr(stage.coord, "multi", cut)
