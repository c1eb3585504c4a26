"""Tests with random producers, lost commits and failovers, checked against invariants:

- the next coordinator has the state that the coordinator before it had stored;
- a transaction never gets markers for both outcomes, and none before its end is committed;
- a partition is verified only if a request for it was answered in the open transaction;
- every request gets an answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.runtime.shard import StoredRecord
from pybroker.coordinator.transactions.coordinator import BEGIN_WAIT_S, TransactionCoordinator
from pybroker.coordinator.transactions.decisions import Init
from pybroker.coordinator.transactions.dependencies import TransactionDependencies
from pybroker.coordinator.transactions.markers import Completion
from pybroker.coordinator.transactions.records import decode_key, decode_value
from pybroker.coordinator.transactions.states import TransactionState
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch, Transaction
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from unit_tests.coordinator.runtime.vocabulary import MemoryShard, stored_in
from unit_tests.coordinator.transactions.stage import stored
from unit_tests.idle_loop import idle

SEEDS = 12
STEPS = 250
IDS = ("a", "b", "c")
KEYS = tuple(TopicPartition("t", number) for number in range(3))


class World:
    """A shard, and producers that may be late or replaced."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shard = MemoryShard(seed=seed)
        self.completions: list[Completion] = []
        self.outcomes: dict[tuple[int, int, int], set[bool]] = {}
        """(producer id, epoch, start of the transaction) -> the outcomes with markers."""
        self.producers: list[tuple[str, ProducerIdAndEpoch]] = []
        self.confirmed: dict[str, set[TopicPartition]] = {}
        self.next_id = 1
        self.waiting: set[asyncio.Task[None]] = set()
        self.asked = self.answered = 0
        self.coordinator = self._host()

    def _host(self) -> TransactionCoordinator:
        dependencies = TransactionDependencies(
            BrokerConfig(), self._new_id, self._send, lambda size: None, lambda size: None
        )
        return self.shard.host(lambda context: TransactionCoordinator(context, dependencies))

    async def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _send(self, completion: Completion) -> None:
        marker = completion.marker
        ended = self.committed_states()
        [found] = [
            each for each in ended.values() if each.producer.producer_id == marker.producer_id
        ]
        wanted = (
            TransactionState.PREPARE_COMMIT if marker.is_commit else TransactionState.PREPARE_ABORT
        )
        assert found.state is wanted, "markers only after the decision is committed"
        key = (marker.producer_id, marker.producer_epoch, found.start_ms)
        outcomes = self.outcomes.setdefault(key, set())
        outcomes.add(marker.is_commit)
        assert len(outcomes) == 1
        self.completions.append(completion)

    def stored(self, end: int) -> dict[str, Transaction]:
        """Return the states in the records below `end`."""
        found: dict[str, Transaction] = {}
        for data in self.shard.log.batches:
            for record in stored_in(data):
                if record.offset >= end:
                    continue
                assert isinstance(record, StoredRecord) and record.key is not None
                name = decode_key(record.key)
                assert name is not None and record.value is not None
                found[name] = decode_value(name, record.value)
        return found

    def committed_states(self) -> dict[str, Transaction]:
        return self.stored(self.shard.log.committed_end)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def answer() -> None:
            try:
                await work
            except BrokerError:
                pass
            self.answered += 1

        self.asked += 1
        task = asyncio.get_running_loop().create_task(answer())
        self.waiting.add(task)
        task.add_done_callback(self.waiting.discard)

    async def init(self, name: str, expected: ProducerIdAndEpoch | None) -> None:
        found = await self.coordinator.init_producer_id(name, Init(60_000, expected))
        self.producers.append((name, found))
        self.confirmed[name] = set()

    async def add(self, name: str, producer: ProducerIdAndEpoch) -> None:
        some = frozenset(self.random.sample(KEYS, self.random.randrange(1, 3)))
        await stored(lambda: self.coordinator.add_partitions(name, producer, some))
        self.confirmed.setdefault(name, set()).update(some)

    async def end(self, name: str, producer: ProducerIdAndEpoch) -> None:
        is_commit = self.random.random() < 0.6
        await stored(lambda: self.coordinator.end(name, producer, is_commit=is_commit))

    async def verify(self, name: str, producer: ProducerIdAndEpoch) -> None:
        await self.coordinator.context.confirm_current()
        found = self.coordinator.verify(name, producer, KEYS)
        confirmed = {key for key, code in found.items() if code is ErrorCode.NONE}
        committed = self.committed_states()[name]
        assert confirmed <= committed.partitions
        assert not confirmed or committed.producer == producer

    async def step(self) -> None:
        rng = self.random
        choice = rng.randrange(12)
        if choice < 2 or not self.producers:
            known = rng.choice(self.producers)[1] if self.producers else None
            self.begin(self.init(rng.choice(IDS), rng.choice([None, known])))
        elif choice < 8:
            name, producer = rng.choice(self.producers[-4:])
            work = rng.choice([self.add, self.add, self.end, self.verify])
            self.begin(work(name, producer))
        elif choice == 8:
            self.shard.log.holds = not self.shard.log.holds
            if not self.shard.log.holds:
                self.shard.log.commit()
        elif choice == 9:
            self.shard.advance(rng.choice([0.5, 5, 40]))
        elif choice == 10:
            for completion in [each for each in self.completions if not each.is_over]:
                some = rng.sample(KEYS, rng.randrange(len(KEYS)))
                completion.written(some if rng.random() < 0.5 else KEYS)
        elif rng.random() < 0.4:
            await self.fail_over()
        if rng.random() < 0.8:
            await idle()

    async def fail_over(self) -> None:
        log = self.shard.log
        loses = self.random.random() < 0.5
        expected = self.stored(log.committed_end if loses else log.end_offset)
        self.shard = self.shard.fail_over(keeps_uncommitted=not loses)
        await idle()
        self.completions = []
        self.coordinator = self._host()
        await self.shard.load()
        assert {each.transactional_id: each for each in self.known()} == expected

    def known(self) -> list[Transaction]:
        """The states in memory. While markers are written, `describe` shows the partitions that
        lack theirs; a new coordinator has sent none."""
        return list(self.coordinator.transactions())


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_invariants_hold(seed: int) -> None:
    world = World(seed)
    await world.shard.load()
    for _ in range(STEPS):
        await world.step()
    await idle()
    world.shard.log.commit()
    world.shard.log.holds = False
    await idle()
    world.shard.advance(BEGIN_WAIT_S)
    await idle()
    states = {each.transactional_id: each for each in world.known()}
    for name, found in world.stored(world.shard.log.end_offset).items():
        assert states[name].producer == found.producer
        assert states[name].state is found.state
        assert states[name].partitions <= found.partitions
    assert world.answered == world.asked > STEPS / 3
    assert len(world.outcomes) > 3
    world.shard.end()
