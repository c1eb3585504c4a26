"""Stale leaders: replaced leaders that do not know yet that another broker leads. As in Apache
Kafka, a stale leader may answer ListOffsets with a latest offset that is too low.

A replaced leader may be stale for two reasons: the controller cannot reach the leader, or a fault
expired the leader's ZooKeeper session early.
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
    """Decides whether a stale leader (see the module) can be the cause of a ListOffsets answer that
    is too low."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._holders = {term.epoch: term.broker for term in history.controller_terms}
        self._replaced = self._replacements()
        self._known = _known_offsets(history)

    def explain(self, answer: Latest) -> bool:
        """Return whether this answer can come from a stale leader. Return False unless the answer's
        offset is above every offset that clients knew as committed before the stale leader was
        replaced."""
        return any(
            answer.offset
            > self._highest_committed(answer.partition, state.at - OBSERVATION_DELAY_NS)
            for replaced, state in self._replaced[_plain_name(answer.partition)]
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
        """Return, by partition, (replaced leader, first partition state without this leader) pairs
        in the order of time."""
        found: dict[TopicPartition, list[tuple[int, State]]] = defaultdict(list)
        last: dict[TopicPartition, State] = {}
        for state in sorted(self._history.states, key=lambda state: state.at):
            before = last.get(state.partition)
            if before is not None and before.leader not in (-1, state.leader):
                found[_plain_name(state.partition)].append((before.leader, state))
            last[state.partition] = state
        return found

    def _highest_committed(self, partition: TopicPartition, time: int) -> int:
        """Return the highest offset that clients already knew as committed before `time` (ns);
        UNKNOWN if clients knew none."""
        times, tops = self._known.get(partition, ([], []))
        place = bisect_left(times, time)
        return tops[place - 1] if place else UNKNOWN


def _plain_name(partition: TopicPartition) -> TopicPartition:
    """Return the partition with its real topic name, without the suffix that `eras.split` adds."""
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
