"""Several replica managers over real logs that copy from each other in one process, and the
commands of their controller."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pybroker.clock import ManualClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.zookeeper.loss_receipts import UNCLEAN_ELECTION, LossReceipt
from pybroker.errors import BrokerError, ConnectionLoss, ErrorCode
from pybroker.model import (
    LEADER_DURING_DELETION,
    NO_EPOCH,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
)
from pybroker.ports import FetchedPartition, FetchLimits, FetchPosition
from pybroker.records.batch import read_header
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition
from pybroker.replication.purgatory import Purgatory
from pybroker.storage.files import SystemDisk
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager
from unit_tests.handlers.bench import NOW_MS, FixedProc, Gate, ImmediateBlocking, batch
from unit_tests.patience import PATIENCE_S
from unit_tests.replication.memory_leader_channel import MemoryLeaderChannel
from unit_tests.replication.vocabulary import T0, TOPIC_ID

T = TypeVar("T")


class NamedGates(ImmediateBlocking):
    """A `Blocking` that holds back work with a given name."""

    def __init__(self) -> None:
        super().__init__()
        self._named: tuple[str, Gate] | None = None

    def hold_named(self, name: str) -> Gate:
        """Return a gate that holds back the next work with that name."""
        gate = Gate()
        self._named = name, gate
        return gate

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        if self._named is None or getattr(function, "__name__", "") != self._named[0]:
            return super().run(function, *args)
        gate, self._named = self._named[1], None
        return self.run_behind(gate, function, *args)


class Receipts:
    """The receipt of one unclean election, and the offsets that replicas truncated. The first
    `away` requests fail with a lost ZooKeeper connection."""

    def __init__(self) -> None:
        self.last_epoch = NO_EPOCH
        self.away = 0
        self.asked = 0
        self.on_asked: Callable[[], object] = lambda: None
        self.given_up: list[tuple[TopicPartition, int, int]] = []

    async def newest_receipt(
        self, topic_partition: TopicPartition, *, after: int, up_to: int
    ) -> LossReceipt | None:
        self.asked += 1
        self.on_asked()
        if self.asked <= self.away:
            raise ConnectionLoss
        if not after < self.last_epoch <= up_to:
            return None
        return LossReceipt(2, self.last_epoch, UNCLEAN_ELECTION, (1,), (1, 2), NOW_MS)

    async def add_truncation(
        self, topic_partition: TopicPartition, leader_epoch: int, start: int, end: int
    ) -> None:
        assert leader_epoch == self.last_epoch
        self.given_up.append((topic_partition, start, end))


class Link(MemoryLeaderChannel):
    """A channel that notifies the group of every fetch. A fetch of a follower shows that the
    follower has applied the previous answer."""

    def __init__(self, group: Group, follower: int, leader: int) -> None:
        super().__init__(follower, lambda: group.reached(follower, leader), group.clock)
        self._group = group
        self._ends = follower, leader

    async def fetch(
        self,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: FetchLimits,
        changed: Iterable[TopicPartition] | None = None,
    ) -> Sequence[FetchedPartition]:
        group = self._group
        group.asked.append((self._ends, dict(positions)))
        if self._ends[0] == 2:
            group.waits_ms.append(limits.max_wait_ms)
        group.moved()
        answers = await super().fetch(positions, limits)
        held = group.held.pop(self._ends[0], None) if answers else None
        if held is not None:
            held.reached.set()
            await held.open.wait()
        most = group.high_watermark_max
        if most is not None:
            answers = [
                each._replace(high_watermark=min(each.high_watermark, most)) for each in answers
            ]
        return group.bent(answers)


class Member:
    """One broker of the group, between `open` and `close`."""

    def __init__(self, group: Group, broker_id: int, home: Path) -> None:
        self.group = group
        self.id = broker_id
        self.home = home
        self.open()

    def open(self) -> None:
        group = self.group
        self.logs = LogManager(
            directories=[str(self.home)],
            disk=SystemDisk(),
            clock=group.clock,
            proc=FixedProc(),
            defaults=group.config,
            rng=random.Random(self.id),
        )
        self.logs.start(self.id, "cluster")
        self.blocking = NamedGates()
        self.fetchers = ReplicaFetchers(
            channel=lambda leader: Link(group, self.id, leader),
            health=self.logs.health,
            blocking=self.blocking,
            clock=group.clock,
            config=group.options,
            losses=group.receipts[self.id],
        )
        self.manager = ReplicaManager(
            broker_id=self.id,
            logs=self.logs,
            blocking=self.blocking,
            clock=group.clock,
            topic_configs=self._configs,
            fetches=Purgatory(),
            produces=Purgatory(),
            fetchers=self.fetchers,
        )
        self.fetchers.listen(self._failed)
        self.up = True

    def _failed(self, key: TopicPartition, reason: str) -> None:
        self.manager.replica_failed(key, reason)
        self.group.moved()

    async def _configs(self, topics: Collection[str]) -> dict[str, LogConfig]:
        return dict.fromkeys(topics, self.group.config)

    async def close(self, *, clean: bool = True) -> None:
        """Stop the broker: cleanly if `clean`, else as kill -9 does."""
        if self.up:
            self.up = False
            await self.fetchers.stop()
            if clean:
                self.logs.shutdown(self.manager.high_watermarks())
            else:
                self.logs.unlock()

    def lose(self, key: TopicPartition = T0) -> None:
        """Remove the partition's directory while the broker is down."""
        assert not self.up
        shutil.rmtree(self.home / str(key))

    def partition(self, key: TopicPartition = T0) -> Partition:
        return self.manager.partition(key)

    def refusal(self, key: TopicPartition = T0) -> ErrorCode:
        """Return the error code of a request for the replica."""
        try:
            self.partition(key)
        except BrokerError as error:
            return error.code
        return ErrorCode.NONE

    def append(self, *values: bytes, key: TopicPartition = T0) -> int:
        """Produce one batch and return the log end after it."""
        return self.store(bytearray(batch(*(values or (b"v",)))), key=key)

    def store(self, data: bytearray, key: TopicPartition = T0) -> int:
        result = self.partition(key).append(
            memoryview(data), read_header(data), acks=1, now_ms=NOW_MS
        )
        self.manager.appended(key, len(data))
        return result.last_offset + 1

    def bytes_of(self, key: TopicPartition = T0, *, start: int = -1) -> bytes:
        """Return the bytes of the log's batches from `start` on (None: from the log start)."""
        log = self.partition(key).log
        found, offset = b"", max(start, log.log_start_offset)
        while offset < log.log_end_offset:
            part = log.read(
                offset, 1 << 30, upper_offset=log.log_end_offset, at_least_one_batch=True,
                cached_only=False,
            )  # fmt: skip
            assert part
            found += bytes(part)
            offset = read_header(part, _last_position(part)).next_offset
        return found

    def epochs(self, key: TopicPartition = T0) -> list[tuple[int, int]]:
        log = self.partition(key).log
        return [(entry.epoch, entry.start_offset) for entry in log.epoch_file.history.entries]


class Group:
    """Brokers 1 to `size` without a controller: the test sends LeaderAndIsr with `lead`."""

    def __init__(self, home: Path, size: int = 2, config: LogConfig | None = None) -> None:
        self.clock = ManualClock(NOW_MS)
        self.config = config or LogConfig()
        self.options = BrokerConfig()
        self.waits_ms: list[int] = []
        """How long each fetch of member 2 may wait at the leader."""
        self.asked: list[tuple[tuple[int, int], dict[TopicPartition, FetchPosition]]] = []
        self.cut: set[tuple[int, int]] = set()
        """The cut connections: (follower, leader)."""
        self.bent: Callable[[Sequence[FetchedPartition]], Sequence[FetchedPartition]] = list
        """A function that changes answers on their way."""
        self.high_watermark_max: int | None = None
        """The largest high watermark that followers receive."""
        self.held: dict[int, Gate] = {}
        self.receipts = {number: Receipts() for number in range(1, size + 1)}
        self._moved: list[asyncio.Future[None]] = []
        self.members = {
            number: Member(self, number, home / f"broker-{number}") for number in range(1, size + 1)
        }

    def __getitem__(self, broker_id: int) -> Member:
        return self.members[broker_id]

    def reached(self, follower: int, leader: int) -> ReplicaManager | None:
        member = self.members[leader]
        return member.manager if member.up and (follower, leader) not in self.cut else None

    async def reopen(self, broker_id: int, *, clean: bool = True) -> None:
        """Stop the broker, if it is up, and start a new one with its data."""
        await self.members[broker_id].close(clean=clean)
        self.members[broker_id].open()

    def hold_answer(self, follower: int) -> Gate:
        """Return a gate that holds the next non-empty answer to the follower."""
        self.held[follower] = Gate()
        return self.held[follower]

    def questions(self, follower: int, key: TopicPartition) -> int:
        """Return the number of fetches of the partition that the follower has sent."""
        return sum(ends[0] == follower and key in asked for ends, asked in self.asked)

    def refused(self, follower: int) -> bool:
        """Return whether a fetch of the follower has failed because it could not reach the
        leader."""
        if not self.asked or self.asked[-1][0][0] != follower:
            return False
        return self.reached(*self.asked[-1][0]) is None

    def forget_high_watermarks(self) -> None:
        """Set each high watermark to 1. This is valid because all brokers have the record at offset
        0."""
        for member in self.members.values():
            member.partition()._high_watermark = 1

    async def stop_replica(self, broker_id: int, key: TopicPartition) -> None:
        command = StopReplica(
            1, 1, -1, (StopReplicaPartition(key, LEADER_DURING_DELETION, delete=True),)
        )
        await self.members[broker_id].manager.stop_replica(command)

    async def close(self) -> None:
        for member in self.members.values():
            await member.close()

    async def lead(
        self,
        leader: int,
        epoch: int,
        *,
        keys: Sequence[TopicPartition] = (T0,),
        isr: tuple[int, ...] | None = None,
        to: Sequence[int] | None = None,
    ) -> list[ErrorCode]:
        """Send LeaderAndIsr to all running brokers, or only to `to`: `leader` leads in that
        epoch."""
        everybody = tuple(self.members)
        state = PartitionState(leader, epoch, everybody if isr is None else isr, 1)
        command = LeaderAndIsr(
            1, 1, -1, tuple(PartitionFacts(key, TOPIC_ID, state, epoch, everybody) for key in keys)
        )
        codes: list[ErrorCode] = []
        for member in self.members.values():
            if member.up and (to is None or member.id in to):
                codes += (await member.manager.leader_and_isr(command)).values()
        return codes

    def moved(self) -> None:
        for future in self._moved:
            if not future.done():
                future.set_result(None)
        self._moved.clear()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition; it is checked whenever a follower fetches or fails."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                future = asyncio.get_running_loop().create_future()
                self._moved.append(future)
                await future

    async def copied(self, leader: int, key: TopicPartition = T0) -> None:
        """Wait until the leader's log end is each running broker's log end and high watermark."""
        end = self[leader].partition(key).log.log_end_offset
        everybody = [member for member in self.members.values() if member.up]
        await self.until(
            lambda: all(
                member.partition(key).log.log_end_offset == end
                and member.partition(key).high_watermark == end
                for member in everybody
            )
        )


def _last_position(data: bytes | bytearray | memoryview) -> int:
    position = 0
    while True:
        size = read_header(data, position).size
        if position + size >= len(data):
            return position
        position += size
