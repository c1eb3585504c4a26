"""Tests with random commits, transactions and deletions. A shard that has served them has the same
offsets as a shard that has loaded their log. After any faults, each committed transaction is
applied as a whole, and no aborted one is applied."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets import transaction_writes
from pybroker.coordinator.offsets.log_store import LoggedOffsets
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Producer
from unit_tests.coordinator.offsets.offset_stage import GROUP, Stage, Store
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import until

STORES = [ZookeeperOffsets, LoggedOffsets]
NAMES: Final = ("a", "b", "c", "d")
PRODUCERS: Final = (1, 2, 3)
Record = tuple[int, int | None, int]
"""(position, offset or None for a deletion, transaction number or -1)"""


class Oracle:
    """The offsets that a group must have: for each partition the newest record, without the records
    of open and aborted transactions. A deletion also removes the earlier offsets of open
    transactions."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {name: [] for name in NAMES}
        self.committed: set[int] = {-1}
        self.position = 0

    def put(self, name: str, offset: int | None, transaction: int = -1) -> None:
        self.position += 1
        if offset is None:
            self.records[name].clear()
        else:
            self.records[name].append((self.position, offset, transaction))

    def expected(self) -> dict[str, int]:
        found = {}
        for name, records in self.records.items():
            decided = [each for each in records if each[2] in self.committed]
            if decided:
                found[f"{name}-0"] = max(decided)[1]
        return {key: offset for key, offset in found.items() if offset is not None}


class Game:
    """A random sequence of steps on one shard."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.oracle = Oracle()
        self.rng = random.Random(seed)
        self.open = dict.fromkeys(PRODUCERS, -1)
        """Producer id -> the number of its open transaction, or -1."""
        self.count = 0

    async def step(self) -> None:
        await self.rng.choice([self.plain, self.begin, self.begin, self.end, self.delete])()

    def _some(self) -> dict[str, int]:
        self.count += 1
        return dict.fromkeys(self.rng.sample(NAMES, self.rng.randint(1, 3)), self.count)

    async def plain(self) -> None:
        some = self._some()
        codes = await self.stage.commit(GROUP, **some)
        assert {*codes} == {ErrorCode.NONE}
        for name, offset in some.items():
            self.oracle.put(name, offset)

    async def begin(self) -> None:
        producer_id, some = self.rng.choice(PRODUCERS), self._some()
        codes = await self.stage.commit_in(producer_id, **some)
        assert {*codes} == {ErrorCode.NONE}
        if self.open[producer_id] < 0:
            self.open[producer_id] = self.count
        for name, offset in some.items():
            self.oracle.put(name, offset, self.open[producer_id])

    async def end(self) -> None:
        producer_id = self.rng.choice(PRODUCERS)
        is_commit = self.rng.random() < 0.7
        self.stage.shard.end_transaction(producer_id, is_commit=is_commit)
        if is_commit and self.open[producer_id] >= 0:
            self.oracle.committed.add(self.open[producer_id])
        self.open[producer_id] = -1
        if self.rng.random() < 0.5:
            await loop_turns(self.rng.randrange(5))

    async def delete(self) -> None:
        name = self.rng.choice(NAMES)
        await self.stage.store.delete(GROUP, [TopicPartition(name, 0)])
        self.oracle.put(name, None)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", STORES)
async def test_a_served_log_and_a_loaded_log_give_the_same_offsets(
    kind: Callable[..., Store], seed: int
) -> None:
    game = Game(await Stage.begin(kind), seed)
    stage = game.stage
    for _ in range(12):
        for _ in range(game.rng.randrange(8)):
            await game.step()
        await idle()
        pending, size = stage.pending(), stage.store.undecided_bytes()
        assert await stage.fetch() == game.oracle.expected()
        if game.rng.random() < 0.4:
            await stage.take_over()
            assert await stage.fetch() == game.oracle.expected()
            assert stage.pending() == pending
            assert stage.store.undecided_bytes() == size


class Storm:
    """Concurrent transactions while connections break and coordinators change. Each producer has
    its own two partitions, and commits rising offsets of both together."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.rng = random.Random(seed)
        self.committed = dict.fromkeys(PRODUCERS, 0)
        """Producer id -> the offset of its last committed transaction."""
        self.aborted: set[int] = set()

    async def produce(self, producer_id: int) -> None:
        for number in range(1, 13):
            offset = 100 * producer_id + number
            names = {f"a{producer_id}": offset, f"b{producer_id}": offset}
            is_commit = self.rng.random() < 0.7
            try:
                codes = await self.stage.commit_in(producer_id, **names)
                is_commit = is_commit and {*codes} == {ErrorCode.NONE}
            except BrokerError:
                is_commit = False
            await loop_turns(self.rng.randrange(4))
            if not is_commit:
                self.aborted.add(offset)
            self.stage.shard.end_transaction(producer_id, is_commit=is_commit)
            if is_commit:
                self.committed[producer_id] = offset
            await loop_turns(self.rng.randrange(30))

    async def trouble(self) -> None:
        coord = self.stage.coord
        for _ in range(10):
            coord = self.stage.coord
            kind = self.rng.randrange(5)
            if kind == 0:
                coord.lose_reply(applied=self.rng.random() < 0.5)
            elif kind == 1:
                coord.suspend()
                await loop_turns(self.rng.randrange(20))
                coord.resume()
            elif kind == 2:
                coord.expire()
            elif kind == 3:
                await self.stage.take_over()
            await loop_turns(self.rng.randrange(30))

    async def read(self) -> None:
        seen: dict[str, int] = {}
        for _ in range(40):
            await loop_turns(self.rng.randrange(6))
            try:
                found = await self.stage.fetch()
            except BrokerError:
                continue
            for key, offset in found.items():
                assert offset not in self.aborted
                assert offset >= seen.get(key, 0), "a committed offset went back"
            seen.update(found)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", STORES)
async def test_no_fault_loses_or_tears_a_committed_transaction(
    kind: Callable[..., Store], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_writes, "OFFSETS_AT_A_TIME_MAX", 1)
    storm = Storm(await Stage.begin(kind, timeout_s=0.02), seed)
    produced = [storm.produce(producer_id) for producer_id in PRODUCERS]
    await asyncio.gather(*produced, storm.trouble(), storm.read())
    expected = {
        f"{letter}{producer_id}-0": offset
        for producer_id, offset in storm.committed.items()
        if offset
        for letter in "ab"
    }
    await until(lambda: not storm.stage.pending())
    assert await storm.stage.fetch() == expected
    await storm.stage.take_over()
    assert await storm.stage.fetch() == expected


async def test_offsets_that_are_in_effect_take_no_memory() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    for number in range(50):
        await stage.store.commit_in_transaction(
            GROUP,
            Producer(1, 0),
            {TopicPartition("t", n): CommittedOffset(number) for n in range(10)},
        )
        assert stage.store.undecided_bytes() > 0
        stage.shard.end_transaction(1)
        await until(lambda: not stage.pending())
        assert stage.store.undecided_bytes() == 0
