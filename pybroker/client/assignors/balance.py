"""The algorithm of the sticky assignors: balanced assignments that move as few partitions as
possible.

In a chain of members, each member could pass one partition to the next member. An assignment is
balanced if no chain ends at a member with at least two partitions fewer than the chain's first
member.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pybroker.client.assignors.base import Assignments, GroupMember, in_order, topics_of
from pybroker.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Ownership:
    """The partitions that a member reports as owned, and the generation in which it owned them (-1:
    unknown)."""

    partitions: tuple[TopicPartition, ...]
    generation: int


def owners(ownerships: Mapping[str, Ownership]) -> dict[TopicPartition, str]:
    """Return each partition's owner: of the members that report the partition, the one with the
    latest generation. A tie leaves no owner."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, ownership in ownerships.items():
        for partition in dict.fromkeys(ownership.partitions):
            generation, _ = best.get(partition, (None, None))
            if generation is None or ownership.generation > generation:
                best[partition] = (ownership.generation, member_id)
            elif ownership.generation == generation:
                best[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in best.items() if owner is not None}


def balanced(
    partition_counts: Mapping[str, int],
    members: Sequence[GroupMember],
    owned: Mapping[TopicPartition, str],
) -> Assignments:
    """Return a balanced assignment: member id -> partitions. `owned` has the owner of each
    partition before the rebalance."""
    ordered = in_order(members)
    reads = {member.member_id: frozenset(member.subscription.topics) for member in ordered}
    everything = [
        TopicPartition(topic, number)
        for topic in topics_of(members, partition_counts)
        for number in range(partition_counts[topic])
    ]
    kept: Assignments = {member.member_id: [] for member in ordered}
    rest = []
    for partition in everything:
        owner = owned.get(partition)
        if owner is not None and partition.topic in reads.get(owner, ()):
            kept[owner].append(partition)
        else:
            rest.append(partition)
    if len(set(reads.values())) <= 1:
        _deal(kept, rest, len(everything))
    else:
        _Flow(kept, reads, owned).settle(rest)
    return {member_id: sorted(kept[member_id]) for member_id in kept}


def _deal(kept: Assignments, rest: list[TopicPartition], total: int) -> None:
    """Balance `kept` in place. Also assign the partitions in `rest`, which have no owner. All
    members must subscribe to the same topics."""
    if not kept:
        return
    each, extra = divmod(total, len(kept))
    for mine in kept.values():
        room = each
        if len(mine) > each and extra > 0:
            room += 1
            extra -= 1
        rest += mine[room:]
        del mine[room:]
    loads = [(len(mine), index, mine) for index, mine in enumerate(kept.values())]
    heapq.heapify(loads)
    for partition in sorted(rest):
        load, index, mine = loads[0]
        mine.append(partition)
        heapq.heapreplace(loads, (load + 1, index, mine))


@dataclass(slots=True)
class _Flow:
    """Balances members that subscribe to different topics, by chains of members (see the
    module)."""

    kept: Assignments
    reads: Mapping[str, frozenset[str]]
    owned: Mapping[TopicPartition, str]
    readers: dict[str, list[str]] = field(default_factory=dict)

    def settle(self, rest: list[TopicPartition]) -> None:
        for member_id, topics in self.reads.items():
            for topic in sorted(topics):
                self.readers.setdefault(topic, []).append(member_id)
        for partition in sorted(rest, key=lambda item: (len(self.readers[item.topic]), item)):
            fewest = min(self.readers[partition.topic], key=self._load)
            self.kept[fewest].append(partition)
        while self._improve():
            pass

    def _load(self, member_id: str) -> int:
        return len(self.kept[member_id])

    def _improve(self) -> bool:
        """Pass partitions along one chain of members. Return False if the assignment is already
        balanced."""
        for giver in sorted(self.kept, key=self._load, reverse=True):
            path = self._path(giver)
            if path:
                for source, topic, target in path:
                    self._move(source, topic, target)
                return True
        return False

    def _path(self, giver: str) -> list[tuple[str, str, str]]:
        """Return the shortest chain of (source, topic, target) moves from `giver` to a member with
        at least two partitions fewer; [] if there is none."""
        came: dict[str, tuple[str, str]] = {}
        queue = deque([giver])
        while queue:
            source = queue.popleft()
            for topic in dict.fromkeys(partition.topic for partition in self.kept[source]):
                for target in self.readers[topic]:
                    if target == giver or target in came:
                        continue
                    came[target] = (source, topic)
                    if self._load(target) <= self._load(giver) - 2:
                        return _trace(came, giver, target)
                    queue.append(target)
        return []

    def _move(self, source: str, topic: str, target: str) -> None:
        """Move one partition of the topic: preferably one that `target` owned before, otherwise one
        that `source` did not own."""
        choices = [partition for partition in self.kept[source] if partition.topic == topic]

        def cost(partition: TopicPartition) -> tuple[int, int]:
            owner = self.owned.get(partition)
            rank = 0 if owner == target else 2 if owner == source else 1
            return rank, -partition.partition

        chosen = min(choices, key=cost)
        self.kept[source].remove(chosen)
        self.kept[target].append(chosen)


def _trace(
    came: Mapping[str, tuple[str, str]], giver: str, target: str
) -> list[tuple[str, str, str]]:
    steps = []
    while target != giver:
        source, topic = came[target]
        steps.append((source, topic, target))
        target = source
    return steps[::-1]
