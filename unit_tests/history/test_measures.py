"""Tests of measures of availability, computed from a history."""

from __future__ import annotations

import pytest

from pybroker.testing.history import measures
from unit_tests.history.script import T0, Script

MS = 1_000_000


def test_the_longest_pause_counts_from_the_beginning_and_to_the_end() -> None:
    script = Script()
    script.send(0, 0)  # acknowledged at 7 ms
    script.send(1, "info")
    script.send(2, 1)  # acknowledged at 11 ms
    history = script.history()
    assert measures.longest_pauses(history, 0, 11 * MS)[T0] == pytest.approx(0.007)
    assert measures.longest_pauses(history, 7 * MS, 11 * MS)[T0] == pytest.approx(0.004)
    assert measures.longest_pauses(history, 10 * MS, 111 * MS)[T0] == pytest.approx(0.1)


def test_an_election_takes_until_another_leads() -> None:
    script = Script()
    script.state(version=0, leader=1, epoch=0)
    script.add("nemesis", "fault", "invoke", what="kill9", target="1")
    script.state(version=1, leader=-1, epoch=1)
    script.add("nemesis", "fault", "ok", what="kill9", target="1")
    script.state(version=2, leader=2, epoch=2)
    history = script.history()
    begin, end = measures.fault(history, "kill9")
    assert end - begin == 2 * MS
    assert measures.election_delay(history, begin, 1) == {T0: pytest.approx(0.003)}
    assert measures.election_delay(history, begin, 2) == {}
    assert measures.elections(history) == 1
    with pytest.raises(IndexError):
        measures.fault(history, "kill9", 1)


def test_an_election_is_over_when_it_is_stored_however_late_that_is_seen() -> None:
    script = Script()
    script.state(version=0, leader=1, epoch=0)
    begin = script.add("nemesis", "fault", "invoke", what="kill9", target="1")
    script.wait(5000)
    script.state(version=1, leader=2, epoch=1)
    script.ops[-1]["written"] = begin + 4 * MS
    assert measures.election_delay(script.history(), begin, 1) == {T0: pytest.approx(0.004)}


def test_answers_and_acknowledgements_of_a_time() -> None:
    script = Script()
    script.send(0, 0)
    begin = 7 * MS + 1
    script.send(1, "fail")
    script.send(2, 1)
    script.invoke(3)
    history = script.history()
    answers = measures.answers(history, "a", begin, 100 * MS)
    assert answers == {"because": 1, "ok": 1, "nothing": 1}
    assert measures.acked_between(history, begin, 100 * MS) == {T0: 1}


def test_a_summary_says_what_happened() -> None:
    script = Script()
    text = script.send(0, 0)
    script.send(1, "fail")
    script.poll((0, text))
    assert measures.summary(script.history()) == (
        "2 values sent (1 stored, 1 refused, 0 unknown), 1 delivered, 0 log ends returned,"
        " 0 elections, longest pause 0.0 s"
    )
