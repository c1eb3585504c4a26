"""Tests with random histories: the rules find the same violations as a slow and simple reference
implementation."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.testing.history.checker import RULES, check
from pybroker.testing.history.client_rules import sightings
from pybroker.testing.history.model import History
from unit_tests.history.script import Script

PRODUCERS = ("a", "b", "c", "leader-only")
OUTCOMES = ("ok", "ok", "ok", "fail", "info", "open")
FAULTS = ("none", "none", "lose", "swap", "repeat", "replace")


@st.composite
def stories(draw: st.DrawFn) -> History:
    """Generate histories of a log that grows while clients read it, and that may be changed before
    the final read."""
    script = Script()
    log: list[str] = []
    counters = dict.fromkeys(PRODUCERS, 0)
    position = 0
    script.assign()
    for _ in range(draw(st.integers(0, 14))):
        producer = draw(st.sampled_from(PRODUCERS))
        outcome = draw(st.sampled_from(OUTCOMES))
        number, counters[producer] = counters[producer], counters[producer] + 1
        stored = outcome == "ok" or draw(st.booleans())
        if outcome == "open":
            text = script.invoke(number, producer)
        else:
            text = script.send(number, len(log) if outcome == "ok" else outcome, producer)
        if stored:
            log.append(text)
        if draw(st.booleans()):
            end = draw(st.integers(position, len(log)))
            if end > position:
                script.poll(*((place, log[place]) for place in range(position, end)))
            position = end
        if draw(st.booleans()):
            script.latest(draw(st.integers(max(0, len(log) - 1), len(log))))
    script.final(*_changed(draw, log))
    return script.history()


def _changed(draw: st.DrawFn, log: list[str]) -> list[str | None]:
    result: list[str | None] = list(log)
    if not log:
        return result
    place = draw(st.integers(0, len(log) - 1))
    match draw(st.sampled_from(FAULTS)):
        case "lose":
            result[place] = None
        case "swap":
            result[0], result[place] = result[place], result[0]
        case "repeat":
            result.append(result[place])
        case "replace":
            result[place] = result[-1]
    return result


def obvious(history: History) -> dict[str, bool]:
    """Return for each rule of clients whether it is violated, by comparing each operation with
    every other one."""
    final = [(r.offset, r.value) for read in history.finals for r in read.records]
    sends = list(history.sends.values())
    delivered = [record for poll in history.polls for record in poll.records]

    def facts(text: str) -> tuple[int, bool, bool]:
        row = history.facts(history.sends[text].identity)
        assert row is not None
        return row.acks, row.idempotent, row.keeps_order

    acked = [s for s in sends if s.outcome == "ok" and facts(s.value)[0] == -1]
    places = [(s.offset, s.value) for s in acked] + [
        (x.offset, x.value) for x in sightings(history)
    ]
    first_place: dict[str, int] = {}
    for offset, text in sorted(final):
        first_place.setdefault(text, offset)
    ordered = [
        (s.identity, first_place[s.value])
        for s in sends
        if s.value in first_place and facts(s.value)[2] and (facts(s.value)[1] or s.outcome == "ok")
    ]
    known = [(p.at, r.offset) for p in history.polls for r in p.records]
    known += [(s.ended, s.offset) for s in acked]
    return {
        "acked-present": any((s.offset, s.value) not in final for s in acked),
        "no-phantom": any(
            x.value not in history.sends or history.sends[x.value].outcome == "fail"
            for x in sightings(history)
        ),
        "one-value-per-offset": any(a[0] == b[0] and a[1] != b[1] for a in places for b in places),
        "duplicates": any(
            a[1] == b[1] and a[0] != b[0] and facts(a[1])[1] for a in final for b in final
        ),
        "producer-order": any(
            a[:2] == b[:2] and a.counter < b.counter and x > y
            for a, x in ordered
            for b, y in ordered
        ),
        "consumer-order": any(b.offset <= a.offset for a, b in pairwise(delivered))
        or any(
            offset not in {r.offset for r in delivered} and offset < delivered[-1].offset
            for offset, _ in final
            if delivered
        ),
        "monotone-watermarks": any(
            answer.offset <= offset
            for answer in history.latest
            for at, offset in known
            if at < answer.asked
        )
        or any(b.offset < a.offset for a, b in pairwise(history.latest)),
        "read-implies-durable": any((r.offset, r.value) not in final for r in delivered),
    }


@given(stories())
@settings(max_examples=300, deadline=None)
def test_the_rules_find_what_an_obvious_reading_finds(history: History) -> None:
    found = {violation.rule for violation in check(history)}
    for rule, broken in obvious(history).items():
        assert (rule in found) == broken, rule


def test_a_long_history_is_judged_quickly() -> None:
    script = Script()
    script.assign()
    texts = []
    for number in range(20_000):
        texts.append(script.send(number, number))
        if number % 10 == 9:
            script.poll(*((place, texts[place]) for place in range(number - 9, number + 1)))
            script.latest(number + 1)
    script.final(*texts)
    history = script.history()
    for name, rule in RULES.items():
        begin = time.process_time()
        assert not list(rule(history))
        assert time.process_time() - begin < 2, name
