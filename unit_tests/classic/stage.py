"""A stage for a classic group: a ZooKeeper in memory, a fake broker in the same event loop, and
members.

Each member has its own session, which a test can break by the methods of `MemoryCoord`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pybroker.classic import ClassicConsumer, Stream
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.model import Endpoint, TopicPartition
from pybroker.ports import CoordOp, CreateOp, DeleteOp, SetOp
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.consumed import ConsumerRecord
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.patience import PATIENCE_S

GROUP = "g"
QUICK: dict[str, Any] = {
    "group_id": GROUP,
    "auto_offset_reset": "smallest",
    "rebalance_backoff_ms": 2_000,
    "auto_commit_interval_ms": 10,
    "fetch_wait_max_ms": 10,
}


class Stage:
    """The stage of one test, created by `stage()`. Topics may be created before or after members
    start."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.tree = MemoryTree()
        self._outside = self.tree.open_session(None)
        for path in paths.PERSISTENT_PARENTS:
            self.make(path)
        self._stack = contextlib.AsyncExitStack()

    def apply(self, *ops: CoordOp) -> None:
        """Apply operations of another client."""
        self.tree.apply(ops, self._outside)

    def make(self, path: str, data: bytes = b"") -> None:
        """Create a node, with its parents."""
        parts = path[1:].split("/")
        for count in range(1, len(parts)):
            parent = "/" + "/".join(parts[:count])
            if self.tree.node(parent) is None:
                self.apply(CreateOp(parent))
        if self.tree.node(path) is None:
            self.apply(CreateOp(path, data))

    def topic(self, name: str, partitions: int) -> None:
        """Create the topic, or add partitions to it."""
        self.broker.topics[name] = partitions
        replicas = dict.fromkeys(range(partitions), (1,))
        data = schemas.encode_topic(schemas.TopicAssignment(replicas))
        path = paths.topic(name)
        self.apply(SetOp(path, data) if self.tree.node(path) else CreateOp(path, data))

    def delete_topic(self, name: str) -> None:
        """Delete the topic and the group's offsets of it, as a broker does."""
        del self.broker.topics[name]
        below = [path for path in self.tree.paths() if path.startswith(f"/consumers/{GROUP}/off")]
        gone = [path for path in reversed(below) if f"/offsets/{name}" in path]
        self.apply(*(DeleteOp(path) for path in [*gone, paths.topic(name)]))

    def append(self, topic: str, number: int, *values: bytes) -> None:
        builder = BatchBuilder(Codec.NONE)
        for value in values:
            builder.append(1_000, None, value, ())
        self.broker.partition(topic, number).append(builder.build())

    async def session(self) -> MemoryCoord:
        coord = MemoryCoord(self.tree)
        await coord.start()
        self._stack.push_async_callback(coord.close)
        return coord

    async def member(
        self, name: str, *, coord: MemoryCoord | None = None, **options: Any
    ) -> ClassicConsumer:
        """Return a started member. The stage closes the member if the test does not."""
        session = coord or await self.session()
        consumer = ClassicConsumer(coord=session, **{"consumer_id": name, **QUICK, **options})
        return await self._stack.enter_async_context(consumer)

    def owner(self, topic: str, number: int) -> str | None:
        found = self.tree.node(paths.group_owner(GROUP, TopicPartition(topic, number)))
        return None if found is None else found[0].decode()

    def offset(self, topic: str, number: int) -> int | None:
        found = self.tree.node(paths.offset(GROUP, TopicPartition(topic, number)))
        return None if found is None else int(found[0])

    async def close(self) -> None:
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def stage(**topics: int) -> AsyncIterator[Stage]:
    async with FakeBroker() as broker:
        made = Stage(broker)
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", broker.port)
        made.make(paths.broker(1), schemas.encode_broker([endpoint], None, 0))
        for name, partitions in topics.items():
            made.topic(name, partitions)
        try:
            yield made
        finally:
            await made.close()


async def only(consumer: ClassicConsumer, topic: str = "t") -> Stream:
    """Subscribe to one topic with one stream."""
    ((stream,),) = (await consumer.subscribe({topic: 1})).values()
    return stream


async def read(stream: Stream, count: int) -> list[ConsumerRecord]:
    """Return the next records."""
    async with asyncio.timeout(PATIENCE_S):
        return [await stream.getone() for _ in range(count)]


def values(records: Sequence[ConsumerRecord]) -> list[bytes]:
    return [record.value or b"" for record in records]
