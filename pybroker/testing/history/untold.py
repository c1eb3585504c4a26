"""Leaders that were replaced and cannot know it: nothing passed between them and the controller
that did it, or their session was ended before its time, up to which they rely on it. Of them the
end of a partition may be heard as it was when they still led.

So it is with Apache Kafka: who has its session, and is not told that it leads no longer, goes on to
answer. `acks=all` is safe from it: its followers fetch elsewhere, and it cannot change the ISR.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from typing import Final

from pybroker.testing.history.model import NANOSECONDS, UNTOLD, History, Latest, State
from pybroker.testing.history.values import PAST, TopicPartition

SEEN_LATE_NS: Final = NANOSECONDS
"""A state was written at most so long before somebody saw it."""
TOLD_LATE_NS: Final = 3 * NANOSECONDS
"""The controller asks again at most so long after messages pass again."""


class Untold:
    """Judges answers about ends that are too low."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._holders = {office.epoch: office.broker for office in history.offices}
        self._replaced = self._replacements()
        self._known = _what_was_known(history)

    def explain(self, answer: Latest) -> bool:
        """Whether a replaced leader may have given it: one that was out of the controller's reach
        when it was replaced and has been since, or whose session a fault had ended without its
        knowledge; and the end is not below what was known by then."""
        return any(
            answer.offset > self._top(answer.partition, state.at - SEEN_LATE_NS)
            for loser, state in self._replaced[_named(answer.partition)]
            if self._out_of_reach(loser, state, answer) or self._is_unaware(loser, state, answer)
        )

    def _out_of_reach(self, loser: int, state: State, answer: Latest) -> bool:
        written = state.at - SEEN_LATE_NS
        controller = self._holders.get(state.controller_epoch)
        return written <= answer.answered and any(
            {loser, controller} == {silence.one, silence.other}
            and silence.begin <= state.at
            and written <= silence.end
            and answer.asked <= silence.end + TOLD_LATE_NS
            for silence in self._history.silences
        )

    def _is_unaware(self, loser: int, state: State, answer: Latest) -> bool:
        return state.at <= answer.answered and any(
            each.broker == loser and each.begin <= state.at and answer.asked <= each.end
            for each in self._history.early_ends
        )

    def _replacements(self) -> dict[TopicPartition, list[tuple[int, State]]]:
        """Who led before, and the first state with another leader, by the name that it has in all
        of its lives: which of them an answer is about, its time says."""
        found: dict[TopicPartition, list[tuple[int, State]]] = defaultdict(list)
        last: dict[TopicPartition, State] = {}
        for state in sorted(self._history.states, key=lambda state: state.at):
            before = last.get(state.partition)
            if before is not None and before.leader not in (-1, state.leader):
                found[_named(state.partition)].append((before.leader, state))
            last[state.partition] = state
        return found

    def _top(self, partition: TopicPartition, before: int) -> int:
        """The highest offset that anybody knew to be committed before that time."""
        times, tops = self._known.get(partition, ([], []))
        place = bisect_left(times, before)
        return tops[place - 1] if place else UNTOLD


def _named(partition: TopicPartition) -> TopicPartition:
    """As clients name it, without the era or life that `eras` has added."""
    topic, index = partition
    return topic.partition(PAST)[0], index


def _what_was_known(history: History) -> dict[TopicPartition, tuple[list[int], list[int]]]:
    facts: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for partition, at, offset, _ in history.committed():
        facts[partition].append((at, offset))
    found = {}
    for partition, rows in facts.items():
        rows.sort()
        tops = list(accumulate((offset for _, offset in rows), max))
        found[partition] = ([at for at, _ in rows], tops)
    return found
