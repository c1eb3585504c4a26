"""The rules for a whole cluster: it recovers after faults, rejects records that too few replicas
can store, and reports every loss."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pybroker.testing.history.client_rules import acked_present
from pybroker.testing.history.model import NANOSECONDS, UNKNOWN, History, Send, State, Violation
from pybroker.testing.history.values import TopicPartition, is_past

_UNCLEAN_ELECTION: Final = "unclean-election"


def availability(history: History) -> Iterator[Violation]:
    """Check that within `Calm.limit` after the last fault, every partition acknowledges records and
    has all replicas in sync."""
    calm = history.calm
    if calm is None:
        return
    rule, end = "availability", calm.since + calm.limit
    seconds = calm.limit / NANOSECONDS
    heard = [send.ended for send in history.sends.values()]
    if max([*heard, *(state.at for state in history.states)], default=0) < end:
        return  # the run ended before the limit, as the cluster was healthy
    alive = {life.topic: life.replicas for life in history.lives if not life.doomed}
    gone = {life.topic for life in history.lives} - alive.keys()
    states: dict[TopicPartition, State] = {}
    for state in history.states:
        if state.at <= end and state.partition[0] not in gone and not is_past(state.partition):
            states[state.partition] = state
    for partition, state in states.items():
        replicas = set(alive.get(partition[0], {}).get(partition[1], ()))
        missing = sorted(replicas - set(state.isr))
        if missing or state.leader < 0:
            text = (
                f"{seconds:g} s after the last fault broker {state.leader} leads, brokers"
                f" {missing} are not in sync"
            )
            yield Violation(rule, partition, UNKNOWN, text, (str(state),))
    for partition, sends in history.sends_by_partition().items():
        if partition[0] in gone or is_past(partition):
            continue
        if partition[1] not in alive.get(partition[0], {partition[1]: ()}):
            continue  # the topic had more partitions before it was recreated
        asked = [each for each in sends if _waits_for_all(history, each)]
        asked = [send for send in asked if send.begun >= calm.since]
        early = [send for send in asked if send.begun <= calm.since + calm.limit // 2]
        if early and not any(send.outcome == "ok" and send.ended <= end for send in asked):
            text = f"nothing was acknowledged within {seconds:g} s after the last fault"
            yield Violation(rule, partition, UNKNOWN, text, (str(early[0]),))


def refusal(history: History) -> Iterator[Violation]:
    """Check that no record sent with acks=all is acknowledged while the partition has no leader or
    too few in-sync replicas. Records sent in the first `History.stale` ns of this state are exempt,
    because a leader learns of an ISR change late."""
    states: dict[TopicPartition, list[State]] = defaultdict(list)
    for state in history.states:
        states[state.partition].append(state)
    required = {
        (life.topic, number): min(life.min_isr, len(replicas))
        for life in history.lives
        for number, replicas in life.replicas.items()
        if not life.doomed
    }
    for partition, sends in history.sends_by_partition().items():
        if partition not in required:
            continue
        closed = _times_below_min_isr(states[partition], required[partition])
        for send in sends if closed else ():
            if send.outcome != "ok" or not _waits_for_all(history, send):
                continue
            for state, begin, end in closed:
                if begin + history.stale <= send.begun and send.ended <= end:
                    text = f"value {send.value} was acknowledged with the ISR {state.isr}"
                    ops = (str(send), str(state))
                    yield Violation("refusal", partition, send.offset, text, ops)


def _times_below_min_isr(states: list[State], required: int) -> list[tuple[State, float, float]]:
    """Return (first state, begin, end) of each interval without a leader, or with fewer than
    `required` replicas in the ISR."""
    found: list[tuple[State, float, float]] = []
    first: State | None = None
    for state in states:
        if state.leader < 0 or len(state.isr) < required:
            first = first or state
        elif first is not None:
            found.append((first, first.at, state.at))
            first = None
    if first is not None:
        found.append((first, first.at, math.inf))
    return found


def admitted_losses(history: History) -> Iterator[Violation]:
    """In a run whose faults cannot lose records, check that no data loss is recorded in
    ZooKeeper."""
    if not history.may_lose:
        for loss in history.losses:
            yield Violation("admitted-losses", loss.partition, UNKNOWN, loss.reason)


def losses_named(history: History) -> Iterator[Violation]:
    """Check that the loss receipts in ZooKeeper name the offsets of all acknowledged records that
    unclean elections lost. Partitions with other losses are exempt: a log truncated by a power loss
    does not show which offsets are lost."""
    given_up: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for loss in history.losses:
        given_up[loss.partition] += loss.given_up
    without_ranges = {loss.partition for loss in history.losses if loss.reason != _UNCLEAN_ELECTION}
    for missing in acked_present(history):
        if missing.partition is None or missing.partition in without_ranges:
            continue
        named = given_up.get(missing.partition)
        if named is None or any(start <= missing.offset < end for start, end in named):
            continue
        if missing.offset == UNKNOWN and named:
            continue  # the offset of the value is unknown
        text = f"{missing.text}; the loss receipts name the offsets {sorted(named)}"
        yield replace(missing, rule="losses-named", text=text)


def _waits_for_all(history: History, send: Send) -> bool:
    facts = history.facts(send.identity)
    return facts is not None and facts.acks == -1
