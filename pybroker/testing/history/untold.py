"""Leaders that were replaced and cannot know it: no message passed between them and the controller
that replaced them, or a fault ended their session before its timeout. Such a leader may still
answer with the latest offset of the time when it led.

Apache Kafka behaves in the same way: a broker that has its session, and was not told that it no
longer leads, continues to answer. `acks=all` stays safe: the followers fetch from the new leader,
and the old one cannot change the ISR.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from typing import Final

from pybroker.testing.history.model import NANOSECONDS, UNTOLD, History, Latest, State
from pybroker.testing.history.values import PAST, TopicPartition

SEEN_LATE_NS: Final = NANOSECONDS
"""The most time between the write of a state and the moment when it is seen."""
TOLD_LATE_NS: Final = 3 * NANOSECONDS
"""The most time until the controller repeats a request after a link has healed."""


class Untold:
    """Explains answers of ListOffsets latest that are too low."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._holders = {term.epoch: term.broker for term in history.controller_terms}
        self._replaced = self._replacements()
        self._known = _what_was_known(history)

    def explain(self, answer: Latest) -> bool:
        """Return whether a replaced leader may have given the answer: the controller could not
        reach it since the replacement, or a fault had ended its session without its knowledge. The
        answer must not be below the offsets known at the replacement."""
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
        """Return partition -> (replaced leader, first state with another leader). The partition's
        name has no era; the time of an answer says which topic it is about."""
        found: dict[TopicPartition, list[tuple[int, State]]] = defaultdict(list)
        last: dict[TopicPartition, State] = {}
        for state in sorted(self._history.states, key=lambda state: state.at):
            before = last.get(state.partition)
            if before is not None and before.leader not in (-1, state.leader):
                found[_named(state.partition)].append((before.leader, state))
            last[state.partition] = state
        return found

    def _top(self, partition: TopicPartition, before: int) -> int:
        """Return the highest offset that a client knew to be committed before that time."""
        times, tops = self._known.get(partition, ([], []))
        place = bisect_left(times, before)
        return tops[place - 1] if place else UNTOLD


def _named(partition: TopicPartition) -> TopicPartition:
    """Return the client's name of the partition, without the era that `eras` has added."""
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
