"""Splits the history of a partition into eras, which the rules check separately. A recreation of
the topic, or a recorded data loss, ends one era and begins the next.

The last era keeps the plain partition name. The names of earlier eras end with PAST and a number.
For some time after the end of an era, a broker may still answer for that era, so operations in that
time belong to no era. For a read in that time, the rules check only that its values were sent.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from dataclasses import dataclass, replace

from pybroker.testing.history.model import UNKNOWN, History, Poll, Send
from pybroker.testing.history.values import NO_ERA, PAST, TopicPartition


@dataclass(frozen=True, slots=True)
class _Era:
    """A part of a partition's history, from `begin` to `end` (ns). A recreation of the topic, or a
    data loss, ends an era. `split` appends `name` to the topic's name in this era."""

    begin: float
    end: float
    name: str


def split(history: History, *, at_losses: bool = True) -> History:
    """Return the history in which each era (see the module) has its own partition name. With
    `at_losses` False, only a recreation of the topic ends an era."""
    is_split = at_losses and history.losses
    if not is_split and not any(life.doomed for life in history.lives):
        return history
    eras = _Eras(history, at_losses=at_losses)
    return replace(
        history,
        sends={value: eras.send(send) for value, send in history.sends.items()},
        polls=[eras.poll(number, poll) for number, poll in enumerate(history.polls)],
        assignments=[
            replace(each, partition=partition)
            for each in history.assignments
            if (partition := eras.at(each.partition, each.at, each.at)) is not None
        ],
        lost_positions=[
            replace(each, partition=eras.first(each.partition))
            for each in history.lost_positions
            if each.partition is None or eras.is_first(each.partition, each.at)
        ],
        latest=[
            replace(each, partition=partition)
            for each in history.latest
            if (partition := eras.at(each.partition, each.asked, each.answered)) is not None
        ],
        states=[
            replace(each, partition=eras.of_life(each.partition, each.at))
            for each in history.states
        ],
        losses=[
            replace(each, partition=eras.of_life(each.partition, each.at))
            for each in history.losses
        ],
    )


class _Eras:
    def __init__(self, history: History, *, at_losses: bool) -> None:
        self._history = history
        self._known: dict[TopicPartition, list[_Era]] = {}
        self._losses: dict[TopicPartition, list[int]] = defaultdict(list)
        for loss in history.losses if at_losses else ():
            self._losses[loss.partition].append(loss.at)
        self._begins: dict[str, list[int]] = defaultdict(list)
        for life in history.lives:
            self._begins[life.topic].append(life.begun)

    def at(self, partition: TopicPartition, begin: int, end: float) -> TopicPartition | None:
        """Find the partition's era (see the module) that contains the whole time from `begin` to
        `end` (ns). Return the partition with the topic name of this era, or None if there is no
        such era."""
        for era in self._of(partition):
            if era.begin <= begin and end <= era.end:
                return partition[0] + era.name, partition[1]
        return None

    def is_first(self, partition: TopicPartition, at: int) -> bool:
        return at <= self._of(partition)[0].end

    def first(self, partition: TopicPartition | None) -> TopicPartition | None:
        """Return the partition with the topic name of its first era, the earliest part of the
        partition's history (see the module). Return None for None."""
        if partition is None:
            return None
        return partition[0] + self._of(partition)[0].name, partition[1]

    def send(self, send: Send) -> Send:
        partition = self.at(send.partition, send.begun, send.ended or math.inf)
        if partition == send.partition:
            return send
        if partition is not None:
            return replace(send, partition=partition)
        unknown = (f"{send.partition[0]}{NO_ERA}", send.partition[1])
        outcome = "info" if send.outcome == "ok" else send.outcome
        return replace(send, partition=unknown, outcome=outcome, offset=UNKNOWN)

    def poll(self, number: int, poll: Poll) -> Poll:
        """Return the poll with the partition name of the era (see the module) that contains the
        poll. If no era contains the poll, its partition gets a unique name made from `number`, so
        that no rule compares the poll's offsets with those of another poll."""
        topic, index = poll.partition
        partition = self.at(poll.partition, poll.at, poll.at)
        return replace(poll, partition=partition or (f"{topic}{NO_ERA}{number}", index))

    def of_life(self, partition: TopicPartition, at: int) -> TopicPartition:
        """Return the partition under a topic name that stands for the topic that existed at the
        time `at`. The newest topic keeps the plain name. The name of an earlier topic gets a
        suffix."""
        topic, index = partition
        begins = self._begins[topic]
        life = bisect.bisect_right(begins, at)
        return partition if life in (0, len(begins)) else (f"{topic}{PAST}life {life}", index)

    def _of(self, partition: TopicPartition) -> list[_Era]:
        known = self._known.get(partition)
        if known is None:
            known = self._known[partition] = self._find(partition)
        return known

    def _find(self, partition: TopicPartition) -> list[_Era]:
        history = self._history
        lives = [life for life in history.lives if life.topic == partition[0]]
        spans: list[tuple[float, float]] = [
            (life.begun + history.stale if number else -math.inf, life.doomed or math.inf)
            for number, life in enumerate(lives)
        ]
        for at in sorted(self._losses[partition]):
            spans = [
                piece
                for begin, end in spans or [(-math.inf, math.inf)]
                for piece in (
                    ((begin, at), (at + history.stale, end)) if begin < at < end
                    else ((begin, end),)
                )
            ]  # fmt: skip
        lasts = not lives or not lives[-1].doomed
        return [
            _Era(begin, end, "" if lasts and number == len(spans) else f"{PAST}{number}")
            for number, (begin, end) in enumerate(spans or [(-math.inf, math.inf)], 1)
        ]
