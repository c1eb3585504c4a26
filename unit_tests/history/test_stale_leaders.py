"""Tests of replaced leaders that cannot know yet that another broker leads: which of their answers
the checker allows."""

from __future__ import annotations

import pytest

from pybroker.testing.history.checker import RULES, check
from pybroker.testing.history.model import NANOSECONDS, EarlyEnd
from unit_tests.history.script import Script


def replaced_in_silence(script: Script, **more: int) -> list[str]:
    """Let broker 1 lead while two values are stored. Controller 3, whose messages broker 1 does not
    receive, then elects broker 2. A third value is sent to broker 2."""
    script.controller_term(1, 3)
    script.state(version=0, leader=1, epoch=0)
    texts = script.sent(2)
    script.silence(more.get("silent", 1), 3)
    script.wait(2000)
    script.state(version=1, leader=2, epoch=1)
    texts.append(script.send(2, 2))
    script.latest(3)
    return texts


def ends_told_by_who_cannot_know(script: Script) -> None:
    replaced_in_silence(script)
    script.latest(2)
    script.silence(1, 3, "ok")
    script.latest(2)
    script.wait(4000)
    script.latest(3)


def test_a_leader_replaced_while_isolated_may_answer_with_its_known_end() -> None:
    script = Script()
    ends_told_by_who_cannot_know(script)
    assert list(RULES["monotone-watermarks"](script.history())) == []


@pytest.mark.parametrize(
    ("broker", "before_s", "after_s", "is_explained"),
    [(1, 1, 1, True), (2, 1, 1, False), (1, 1, -1, False), (1, -1, 1, False)],
)
def test_a_broker_that_could_not_know_of_its_ended_session_may_answer_too(
    broker: int, before_s: int, after_s: int, is_explained: bool
) -> None:
    """The exception applies from the end of the session until the broker learns of it."""
    script = Script()
    replaced_in_silence(script, silent=2)
    script.latest(2)
    history = script.history()
    state, answer = history.states[-1], history.latest[-1]
    begin, end = state.at - before_s * NANOSECONDS, answer.asked + after_s * NANOSECONDS
    history.early_ends.append(EarlyEnd(broker, begin, end))
    assert (list(RULES["monotone-watermarks"](history)) == []) is is_explained


@pytest.mark.parametrize("is_explained", [True, False])
def test_an_explanation_still_holds_after_the_topic_is_deleted(
    is_explained: bool,
) -> None:
    """In the split history the topic has another name in each era. The name in a state may differ
    from the name in an answer."""
    script = Script()
    script.topic()
    replaced_in_silence(script, silent=1 if is_explained else 2)
    script.latest(2)
    script.deletion()
    script.wait(1000)
    script.topic()
    found = check(script.history(), ["monotone-watermarks"])
    assert (found == []) is is_explained


@pytest.mark.parametrize("case", ["below what it knew", "long after it was told", "in reach"])
def test_but_nothing_else_of_that_is_explained(case: str) -> None:
    script = Script()
    replaced_in_silence(script, silent=2 if case == "in reach" else 1)
    if case == "long after it was told":
        script.silence(1, 3, "ok")
        script.wait(4000)
    script.latest(1 if case == "below what it knew" else 2)
    found = list(RULES["monotone-watermarks"](script.history()))
    assert {violation.rule for violation in found} == {"monotone-watermarks"}, found
    assert "the latest offset decreased from 3" in found[0].text
