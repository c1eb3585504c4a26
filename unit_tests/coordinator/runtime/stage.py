"""The shards of a broker over a log in memory, with a ZooKeeper in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pybroker.applog.rate_limit import LogLimit
from pybroker.clock import ManualClock
from pybroker.coordinator.groups.fence import FenceOwner, take_fence
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.coordinator.runtime.shards import Shards
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import encode_state
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import PartitionState, TopicPartition
from pybroker.ports import PartitionLog
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.coordinator.runtime.vocabulary import NOW_MS, TOPIC, LastValues, MemoryPartitionLog
from unit_tests.handlers.bench import ImmediateBlocking

ME, OTHER = 1, 2
P0 = TopicPartition(TOPIC, 0)
STATE = paths.partition_state(P0)
FENCE = paths.coordinator(0)

T = TypeVar("T")


@dataclass
class Options:
    commit_timeout_s: float = 60.0
    bytes_per_read: int = 1000


class Stage:
    """The shards of broker ME, with a log in memory and a ZooKeeper that broker OTHER also uses."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.tree = MemoryTree()
        self.coord = MemoryCoord(self.tree)
        self.log = MemoryPartitionLog()
        self.options = Options()
        self.made: list[LastValues] = []
        self.begun: asyncio.Queue[LastValues] = asyncio.Queue()
        self.fence_hooks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Functions; before each attempt to take the fence, the next function is awaited."""
        self.is_fenced = False
        self.shards = Shards(
            topic=TOPIC,
            make=self._make,
            open_log=self._open_log,
            fence=self,
            commit_timeout_s=lambda: self.options.commit_timeout_s,
            bytes_per_read=lambda: self.options.bytes_per_read,
            clock=self.clock,
            rng=random.Random(0),
            blocking=ImmediateBlocking(),
            log_limit=LogLimit(ManualClock()),
            is_fenced=lambda: self.is_fenced,
        )

    async def __aenter__(self) -> Stage:
        await self.coord.start()
        for path in (*paths.PERSISTENT_PARENTS, paths.topic(TOPIC), paths.partitions(TOPIC)):
            await self._make_node(path)
        await self._make_node(paths.partition(P0))
        await self.coord.create(STATE, encode_state(PartitionState(ME, 0, (ME,), 1)))
        self.shards.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shards.stop()
        await self.coord.close()

    async def take(self, source: PartitionLog, token: str) -> int | None:
        if self.fence_hooks:
            await self.fence_hooks.pop(0)()
        owner = FenceOwner(source.topic_partition, ME, source.leader_epoch, token)
        return await take_fence(self.coord, owner)

    async def store(self, leader: int, epoch: int) -> None:
        """Store a state as the controller does, without sending it to the brokers."""
        await self.coord.set(STATE, encode_state(PartitionState(leader, epoch, (ME,), 1)))

    async def led(self) -> LastValues:
        """Make ME the leader, wait until the shard is loaded, and return its coordinator."""
        self.shards.led(0, self.log.leader_epoch)
        await self.shards.settled()
        return self.shards.shard_for(0)

    def refusal(self) -> ErrorCode:
        """The error code that a request gets."""
        try:
            self.shards.shard_for(0)
        except BrokerError as error:
            return error.code
        return ErrorCode.NONE

    @property
    def fence(self) -> int:
        node = self.tree.node(FENCE)
        return -1 if node is None else node[1].version

    def _open_log(self, partition: int) -> PartitionLog:
        if self.is_fenced:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the test lets no log be opened")
        return self.log

    def _make(self, context: ShardContext) -> LastValues:
        self.made.append(LastValues(context))
        self.begun.put_nowait(self.made[-1])
        return self.made[-1]

    async def _make_node(self, path: str) -> None:
        parts = path.split("/")
        for length in range(2, len(parts) + 1):
            part = "/".join(parts[:length])
            if await self.coord.exists(part) is None:
                await self.coord.create(part)
