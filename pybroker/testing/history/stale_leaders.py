"""Stale leaders: replaced leaders that do not know yet that another broker leads. Either no message
passed between them and the controller that replaced them, or a fault ended their session before its
timeout. A stale leader may still answer ListOffsets with its old log end.

Apache Kafka behaves in the same way: a broker with a session continues to answer as leader until it
receives the controller's request. `acks=all` stays safe: the followers fetch from the new leader,
and the old leader cannot change the ISR.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from typing import Final

from pybroker.testing.history.model import NANOSECONDS, UNKNOWN, History, Latest, State
from pybroker.testing.history.values import PAST, TopicPartition

OBSERVATION_DELAY_NS: Final = NANOSECONDS
"""The maximum time between the write of a partition's state and its observation by the test."""
CONTROLLER_RETRY_NS: Final = 3 * NANOSECONDS
"""The maximum time until the controller repeats a request after a link has healed."""


class StaleLeaders:
    """The replaced leaders in a history. They may be the reason why an answer to ListOffsets names
    an offset that is too low."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._holders = {term.epoch: term.broker for term in history.controller_terms}
        self._replaced = self._replacements()
        self._known = _known_offsets(history)

    def explain(self, answer: Latest) -> bool:
        """Return whether a stale leader may have given this answer, so that its offset may be below
        offsets that were known to be committed before the request. A leader may be stale in two
        cases: the controller could not reach it after the replacement, or a fault had ended its
        session without its knowledge. Even then the answer must be above every offset that was
        known to be committed when the leader was replaced."""
        return any(
            answer.offset > self._top(answer.partition, state.at - OBSERVATION_DELAY_NS)
            for replaced, state in self._replaced[_named(answer.partition)]
            if self._out_of_reach(replaced, state, answer)
            or self._is_unaware(replaced, state, answer)
        )

    def _out_of_reach(self, replaced: int, state: State, answer: Latest) -> bool:
        written = state.at - OBSERVATION_DELAY_NS
        controller = self._holders.get(state.controller_epoch)
        return written <= answer.answered and any(
            {replaced, controller} == {silence.one, silence.other}
            and silence.begin <= state.at
            and written <= silence.end
            and answer.asked <= silence.end + CONTROLLER_RETRY_NS
            for silence in self._history.silences
        )

    def _is_unaware(self, replaced: int, state: State, answer: Latest) -> bool:
        return state.at <= answer.answered and any(
            each.broker == replaced and each.begin <= state.at and answer.asked <= each.end
            for each in self._history.early_ends
        )

    def _replacements(self) -> dict[TopicPartition, list[tuple[int, State]]]:
        """Return, by partition, each replaced leader with the first state that has another leader.
        The partition has its plain name in all eras."""
        found: dict[TopicPartition, list[tuple[int, State]]] = defaultdict(list)
        last: dict[TopicPartition, State] = {}
        for state in sorted(self._history.states, key=lambda state: state.at):
            before = last.get(state.partition)
            if before is not None and before.leader not in (-1, state.leader):
                found[_named(state.partition)].append((before.leader, state))
            last[state.partition] = state
        return found

    def _top(self, partition: TopicPartition, before: int) -> int:
        """Return the highest offset that a client knew to be committed before the time `before`."""
        times, tops = self._known.get(partition, ([], []))
        place = bisect_left(times, before)
        return tops[place - 1] if place else UNKNOWN


def _named(partition: TopicPartition) -> TopicPartition:
    """Return the partition with the plain name of its topic: without the suffix that `eras.split`
    adds to the names of earlier eras."""
    topic, index = partition
    return topic.partition(PAST)[0], index


def _known_offsets(history: History) -> dict[TopicPartition, tuple[list[int], list[int]]]:
    facts: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for partition, at, offset, _ in history.committed():
        facts[partition].append((at, offset))
    found = {}
    for partition, rows in facts.items():
        rows.sort()
        tops = list(accumulate((offset for _, offset in rows), max))
        found[partition] = ([at for at, _ in rows], tops)
    return found
