"""A topic that is deleted and recreated at the worst moment: between a broker's read and its
write."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pybroker.coordinator.controller.deletion import remove_topic
from pybroker.coordinator.controller.topics import create_topic
from pybroker.coordinator.controller.writes import FencedWriter
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.coordinator.zookeeper.schemas import decode_topic, encode_state
from pybroker.errors import ConnectionLoss, MalformedNode, MultiFailed
from pybroker.model import NO_TOPIC_ID, PartitionState, TopicPartition
from pybroker.ports import CoordOp, NodeStat, OpResult, SetOp
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord

NEXT_ID = uuid.UUID(int=77)
NEXT = PartitionState(leader=3, leader_epoch=0, isr=(3, 1), controller_epoch=9)
"""The content of the recreated topic's state node, in version 0."""


class RecreatedTopic:
    """The recreated topic in place of the existing topic of `key`."""

    def __init__(self, tree: MemoryTree, key: TopicPartition, *more: CoordOp) -> None:
        """`more`: operations after the creation."""
        self._tree = tree
        self._more = more
        self._key = key
        self._state = paths.partition_state(key)
        self.kept: list[Sequence[CoordOp]] = []

    async def recreate(self) -> None:
        """Delete and recreate the topic, as the controller does."""
        name, tool = self._key.topic, MemoryCoord(self._tree, name="tool")
        await tool.start()
        await ensure(tool, paths.delete_topic(name))
        await ensure(tool, paths.CONTROLLER_EPOCH)
        await ensure(tool, paths.topic_config(name))
        await ensure(tool, paths.TOPIC_IDS)
        epoch = await tool.exists(paths.CONTROLLER_EPOCH)
        assert epoch is not None
        topic_id = NO_TOPIC_ID
        with suppress(MalformedNode):
            topic_id = decode_topic("", (await tool.get(paths.topic(name)))[0]).topic_id or topic_id
        assert await remove_topic(tool, FencedWriter(tool, epoch.version), name, topic_id)
        await create_topic(tool, name, {self._key.partition: (3, 1)}, {}, NEXT_ID)
        await ensure(tool, paths.partition(self._key))
        await tool.create(self._state, encode_state(NEXT))
        await tool.multi(self._more)
        await tool.close()

    def recreate_before_next_write_of(self, coord: MemoryCoord) -> None:
        """Recreate the topic while the next write of `coord` is on its way."""

        async def late(ops: Sequence[CoordOp]) -> list[OpResult]:
            await self.recreate()
            return await coord.multi(ops)

        self._intercept(coord, late)

    def hold_next_write_of(self, coord: MemoryCoord) -> None:
        """Hold the next write of `coord` until `deliver_held_write`; the sender gets
        ConnectionLoss."""

        async def kept(ops: Sequence[CoordOp]) -> list[OpResult]:
            self.kept.append(ops)
            raise ConnectionLoss("the test keeps the request")

        self._intercept(coord, kept)

    def deliver_held_write(self) -> None:
        """Apply the held write; ZooKeeper may refuse it."""
        (ops,) = self.kept
        with suppress(MultiFailed):
            self._tree.apply(ops, session_id=0)

    def _intercept(
        self,
        coord: MemoryCoord,
        write: Callable[[Sequence[CoordOp]], Awaitable[list[OpResult]]],
    ) -> None:
        before = coord.multi, coord.set

        async def multi(ops: Sequence[CoordOp]) -> list[OpResult]:
            if all(op.path.startswith(paths.INCARNATIONS) for op in ops):
                return await before[0](ops)  # it raises the incarnation, and concerns no topic
            coord.multi, coord.set = before  # type: ignore[method-assign]
            return await write(ops)

        async def store(path: str, data: bytes, version: int = -1) -> NodeStat:
            try:
                (stat,) = await multi([SetOp(path, data, version)])
            except MultiFailed as error:
                raise error.cause from error
            assert isinstance(stat, NodeStat)
            return stat

        coord.multi, coord.set = multi, store  # type: ignore[method-assign]
