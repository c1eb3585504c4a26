"""Tests of three replicas with changes of leaders, truncations, kills, deletions and all kinds of
batches. At the end their logs have the same bytes, and each committed record has its offset.

A seed determines all random choices, so it repeats a run exactly.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError
from pybroker.records.batch import iter_headers
from pybroker.records.compression import Codec
from pybroker.storage.log_config import LogConfig
from unit_tests.handlers.bench import batch
from unit_tests.idle_loop import loop_turns
from unit_tests.replication.copying import Group
from unit_tests.replication.vocabulary import T0
from unit_tests.storage.batches import marker

MEMBERS = (1, 2, 3)
STEPS = 150
SMALL = LogConfig(segment_bytes=2_000, index_interval_bytes=300, retention_bytes=6_000)


class Story:
    """Acts as the controller, the producers and the faults. Invariant: the leader is in the ISR."""

    def __init__(self, group: Group, seed: int) -> None:
        self.group = group
        self.random = random.Random(seed)
        self.leader = 1
        self.epoch = 0
        self.isr = set(MEMBERS)
        self.zombies: set[int] = set()
        self.committed: dict[int, bytes] = {}
        """Offset -> batch, for all batches below the high watermark of any leader so far."""
        self._sequences: dict[int, int] = {}
        self._open_transactions: set[int] = set()
        self._producers = 0

    async def elect(self) -> None:
        self.epoch += 1
        healthy = [each for each in MEMBERS if each not in self.zombies]
        isr = tuple(sorted(self.isr))
        await self.group.lead(self.leader, self.epoch, isr=isr, to=healthy)

    # the steps

    async def append(self) -> None:
        self._write(self.leader)

    async def append_in_vain(self) -> None:
        """Append to a replaced leader that does not know yet that another broker leads."""
        for each in self.zombies:
            if self.group[each].partition().is_leader:
                self._write(each)

    async def wait(self) -> None:
        group, leader = self.group, self.leader
        end = group[leader].partition().log.log_end_offset
        members = [group[each].partition() for each in self.isr]
        await group.until(lambda: all(each.log.log_end_offset >= end for each in members))

    async def cut(self) -> None:
        followers = sorted(self.isr - {self.leader})
        if followers:
            lost = self.random.choice(followers)
            self._isolate(lost)
            self.isr.discard(lost)
            await self.elect()

    async def fail_leader(self) -> None:
        others = sorted(self.isr - {self.leader})
        if others:
            self._isolate(self.leader)
            self.isr.discard(self.leader)
            self.leader = self.random.choice(others)
            await self.elect()

    async def change_leader(self) -> None:
        self.leader = self.random.choice(sorted(self.isr))
        await self.elect()

    async def heal(self) -> None:
        for each in sorted(self.zombies):
            self.zombies.discard(each)
            self.group.cut = {ends for ends in self.group.cut if each not in ends}
            for other in self.zombies:
                self._isolate(other)
            await self.elect()
            await self._join(each)

    async def restart(self) -> None:
        lost = self.random.choice(sorted(self.isr - {self.leader}) or [0])
        if lost:
            await self.group.reopen(lost, clean=self.random.random() < 0.5)
            await self.elect()

    async def delete_records(self) -> None:
        partition = self.group[self.leader].partition()
        start, end = partition.log.log_start_offset, partition.high_watermark
        partition.log.advance_log_start(self.random.randint(start, end))

    async def retain(self) -> None:
        for each in self.isr:
            member = self.group[each]
            marks = member.manager.high_watermarks()
            member.logs.run_retention(self.group.clock.wall_ms(), marks.__getitem__)

    async def _join(self, broker_id: int) -> None:
        leader, joins = self.group[self.leader], self.group[broker_id]

        def are_one() -> bool:
            logs = [each.partition().log for each in (leader, joins)]
            start = max(log.log_start_offset for log in logs)
            same = leader.bytes_of(start=start) == joins.bytes_of(start=start)
            return same and logs[0].log_end_offset == logs[1].log_end_offset

        await self.group.until(are_one)
        self.isr.add(broker_id)
        await self.elect()

    def _isolate(self, broker_id: int) -> None:
        self.zombies.add(broker_id)
        for other in MEMBERS:
            self.group.cut |= {(broker_id, other), (other, broker_id)}

    # writes

    def _write(self, broker_id: int) -> None:
        try:
            self.group[broker_id].store(self._batch())
        except BrokerError:  # the producer's last batches were lost with their leader
            self._sequences.clear()
            self._open_transactions.clear()

    def _batch(self) -> bytearray:
        draw = self.random.random
        values = [
            self.random.randbytes(self.random.randint(0, 90)) for _ in range(1 + int(draw() * 5))
        ]
        codec = self.random.choice(list(Codec))
        if draw() < 0.4:
            return bytearray(batch(*values, codec=codec))
        if self._open_transactions and draw() < 0.4:
            producer = self._open_transactions.pop()
            return marker(producer, commit=draw() < 0.5)
        if not self._sequences or draw() < 0.1:
            self._producers += 1
            self._sequences[self._producers] = 0
        producer = self.random.choice(sorted(self._sequences))
        sequence = self._sequences[producer]
        self._sequences[producer] += len(values)
        transactional = producer % 2 == 0
        if transactional:
            self._open_transactions.add(producer)
        whose = (producer, 0, sequence)
        return bytearray(batch(*values, codec=codec, producer=whose, transactional=transactional))

    # checks

    def note_committed(self) -> None:
        """Note newly committed records, and check that the leader has all earlier ones."""
        member = self.group[self.leader]
        log, data = member.partition().log, member.bytes_of()
        for position, header in iter_headers(data):
            if header.next_offset > member.partition().high_watermark:
                break
            one = data[position : position + header.size]
            assert self.committed.setdefault(header.base_offset, one) == one
        kept = {header.base_offset for _, header in iter_headers(data)}
        lost = {base for base in self.committed if base >= log.log_start_offset} - kept
        assert not lost, f"committed batches at {sorted(lost)} are gone"


@pytest.mark.parametrize("seed", range(4))
async def test_all_replicas_end_with_the_same_log(tmp_path: Path, seed: int) -> None:
    deletes = seed % 2 == 1
    group = Group(tmp_path, len(MEMBERS), SMALL)
    group.options = BrokerConfig(replica_fetch_wait_max_ms=10, replica_fetch_backoff_ms=20)
    for each in MEMBERS:
        await group.reopen(each)
    story = Story(group, seed)
    steps: list[tuple[Callable[[], Awaitable[None]], int]] = [
        (story.append, 60),
        (story.append_in_vain, 10),
        (story.wait, 10),
        (story.cut, 3),
        (story.fail_leader, 5),
        (story.change_leader, 4),
        (story.heal, 5),
        (story.restart, 4),
        (story.delete_records, 1 * deletes),
        (story.retain, 3 * deletes),
    ]
    try:
        await story.elect()
        for step in story.random.choices(
            [step for step, _ in steps], [weight for _, weight in steps], k=STEPS
        ):
            await step()
            await loop_turns(1)
            story.note_committed()
        await story.heal()
        group[story.leader].append(b"last")
        await group.copied(story.leader)
        story.note_committed()
        _same(group)
    finally:
        await group.close()


def _same(group: Group) -> None:
    first, *others = MEMBERS
    log = group[first].partition().log
    for other in others:
        copy = group[other].partition().log
        start = max(log.log_start_offset, copy.log_start_offset)
        assert group[other].bytes_of(start=start) == group[first].bytes_of(start=start) != b""
        assert _epochs(group, other, start) == _epochs(group, first, start)
        if start > 0:
            continue  # replicas may differ for a transaction whose first records are deleted
        for each in (copy, log):
            each.producers.decide(log.log_end_offset)
        assert copy.producers.first_unstable == log.producers.first_unstable
        assert copy.aborted_transactions(start, copy.log_end_offset) == log.aborted_transactions(
            start, log.log_end_offset
        )


def _epochs(group: Group, broker_id: int, start: int) -> list[tuple[int, int]]:
    """Return the leader epochs from `start` on; the epoch at `start` counts as beginning there."""
    by_start = {max(first, start): epoch for epoch, first in group[broker_id].epochs(T0)}
    return [(epoch, first) for first, epoch in by_start.items()]
