"""Tests of a real partition with random schedules of appends, fetches, ISR changes and lost
replies.

After every step each electable replica has all committed records, the high watermark has not
fallen, and the leader considers the stored ISR possible.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.model import PartitionFacts, PartitionState
from pybroker.replication.leader_state import NOBODY, FollowerFetch, IsrChange
from pybroker.storage.log_config import LogConfig
from unit_tests.replication.vocabulary import ME, T0, TOPIC_ID, Replicas

FOLLOWERS = (2, 3)
ALL = (ME, *FOLLOWERS)
LAG_S = 10.0
STEPS = 60
SCHEDULES = 120


class Schedule:
    """One leadership, with the state node and the followers' log ends."""

    def __init__(self, replicas: Replicas, rng: random.Random, epoch: int) -> None:
        self.replicas = replicas
        self.manager = replicas.manager
        self.rng = rng
        self.epoch = epoch
        self.version = 0
        self.incarnations = dict.fromkeys(FOLLOWERS, 0)
        self.done: list[str] = []
        self.steps: list[Callable[[], str]] = [
            *[self.append] * 6,
            *[self.fetch] * 10,
            *[self.arrive] * 4,
            *[self.wait] * 3,
            self.lose_reply,
            self.meddle,
            self.wipe,
            self.reconfigure,
            self.tell_again,
        ]

    async def begin(self) -> None:
        isr = (ME, *self.rng.sample(FOLLOWERS, self.rng.randrange(3)))
        self.state = PartitionState(ME, self.epoch, isr, 1)
        facts = PartitionFacts(T0, TOPIC_ID, self.state, self.version, ALL)
        self.manager.isr_changes.clear()
        await self.replicas.told(facts)
        self.partition = self.replicas.partition()
        committed = self.partition.high_watermark
        end = self.partition.log.log_end_offset
        # Each electable replica has all committed records; no replica has more than the leader.
        self.ends = {each: self.rng.randrange(committed, end + 1) for each in FOLLOWERS}
        self.committed = committed

    @property
    def electable(self) -> tuple[int, ...]:
        return (*self.state.isr, *self.state.eligible)

    def step(self) -> None:
        self.done.append(self.rng.choice(self.steps)())
        partition = self.partition
        assert partition.high_watermark >= self.committed, self.done
        self.committed = partition.high_watermark
        for broker in self.electable:
            end = self.ends.get(broker, partition.log.log_end_offset)
            assert end >= self.committed, (broker, end, self.committed, self.done)
        assert partition._leader is not None
        assert set(self.state.isr) <= partition._leader.maximal_isr, self.done

    # steps

    def append(self) -> str:
        self.replicas.append()
        return f"append {self.partition.log.log_end_offset}"

    def fetch(self) -> str:
        broker = self.rng.choice(FOLLOWERS)
        end = self.ends[broker]
        fetch = FollowerFetch(broker, end, 0, self.incarnations[broker])
        self.manager.follower_fetched(self.partition, fetch, self.replicas.clock.monotonic())
        if self.rng.random() < 0.8:
            self.ends[broker] = self.rng.randint(end, self.partition.log.log_end_offset)
        return f"fetch {broker} at {end}"

    def wait(self) -> str:
        self.replicas.clock.advance(self.rng.choice([1.0, LAG_S, 2 * LAG_S]))
        self.manager.review_isr(self.partition)
        return "check"

    def _pending(self) -> IsrChange | None:
        change = self.manager.isr_changes.get(T0)
        if change is not None and not self.partition.is_pending(change):
            del self.manager.isr_changes[T0]
            return None
        return change

    def _write(self, change: IsrChange) -> bool:
        """Apply the write at ZooKeeper; return whether it was applied."""
        stale = change.joins != NOBODY and change.incarnation != self.incarnations[change.joins]
        if stale or change.expected_version != self.version:
            return False
        self.state, self.version = change.state, self.version + 1
        return True

    def arrive(self) -> str:
        change = self._pending()
        if change is None:
            return "nothing pending"
        del self.manager.isr_changes[T0]
        if self._write(change):
            self.partition.isr_stored(change, self.version)
        elif self.version == change.expected_version:
            self.partition.isr_refused(change)
        else:
            self.partition.isr_adopted(self.state, self.version)
        return f"write {change.state.isr}: {self.state.isr}"

    def lose_reply(self) -> str:
        change = self._pending()
        if change is not None:
            self._write(change)
        return f"lost reply: {self.state.isr}"

    def meddle(self) -> str:
        """Let a broker remove itself from the ISR."""
        broker = self.rng.choice(FOLLOWERS)
        if broker in self.state.isr:
            isr = tuple(each for each in self.state.isr if each != broker)
            self.state, self.version = replace(self.state, isr=isr), self.version + 1
        return f"{broker} takes itself out: {self.state.isr}"

    def wipe(self) -> str:
        broker = self.rng.choice(FOLLOWERS)
        if broker not in self.electable:
            self.incarnations[broker] += 1
            self.ends[broker] = 0
        return f"wipe {broker}"

    def reconfigure(self) -> str:
        wanted = self.rng.choice([1, 2, 3])
        self.partition.log.set_config(LogConfig(min_insync_replicas=wanted))
        self.manager.review_isr(self.partition)
        return f"min.insync.replicas={wanted}"

    def tell_again(self) -> str:
        facts = PartitionFacts(T0, TOPIC_ID, self.state, self.version, ALL)
        self.partition.told_again(facts)
        return "told again"


@pytest.mark.parametrize("seed", range(4))
async def test_no_committed_record_is_lost(tmp_path: Path, seed: int) -> None:
    replicas = Replicas(tmp_path)
    replicas.manager.lag_max_s = LAG_S
    rng = random.Random(seed)
    moved = 0
    for epoch in range(SCHEDULES):
        schedule = Schedule(replicas, rng, epoch)
        await schedule.begin()
        before = schedule.committed
        for _ in range(STEPS):
            schedule.step()
        moved += schedule.committed > before
    assert moved > SCHEDULES // 2
    replicas.logs.shutdown({})
