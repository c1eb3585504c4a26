"""Tests of the rules for consumer groups. If a history violates one rule, only this rule reports
it. If it violates none, no rule reports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pybroker.testing.history.checker import check, report
from pybroker.testing.history.model import EarlyEnd
from unit_tests.history.script import T0, Script

Story = Callable[["GroupScript"], None]
T1 = ("t", 1)


class GroupScript(Script):
    """A history of the group `g`, which reads topic `t`. Each client name may be a member."""

    def __init__(self) -> None:
        super().__init__()
        self.add("load", "group", "info", group="g", topics=["t"], partition=3)

    def holds(
        self, client: str, *partitions: tuple[str, int], generation: int = 1, member: str = ""
    ) -> None:
        self.add(
            client, "holds", "ok",
            group="g", member=member or f"{client}-id", generation=generation, tps=partitions,
        )  # fmt: skip

    def process(self, client: str, *offsets: int) -> None:
        self.add(client, "processed", "ok", group="g", tp=self.partition, offs=offsets)

    def ask(self, client: str, offset: int, generation: int = 1) -> None:
        """Record the begin of a commit."""
        where: dict[str, Any] = {"group": "g", "tp": self.partition, "off": offset}
        self.add(client, "commit", "invoke", generation=generation, **where)

    def told(self, client: str, offset: int, outcome: str = "ok") -> None:
        """Record the outcome of a commit."""
        self.add(client, "commit", outcome, group="g", tp=self.partition, off=offset, err="")

    def commit(self, client: str, offset: int, outcome: str = "ok", *, generation: int = 1) -> None:
        self.ask(client, offset, generation)
        self.told(client, offset, outcome)

    def committed(self, offset: int, asked: int | None = None) -> None:
        """Record the answer to a request for the committed offset. The request was sent now, or at
        `asked`."""
        now = (len(self.ops) + self.waited) * 1_000_000 + 500_000
        question = now if asked is None else asked
        self.add("asker", "committed", "ok", group="g", tp=T0, off=offset, asked=question)

    def coordinator_term(self, broker: int) -> int:
        return self.add("zookeeper", "coordinator", "ok", partition=3, broker=broker)

    def steady(self, count: int = 4) -> list[str]:
        """Store this number of records, and let a member in its first generation process them."""
        texts = self.sent(count)
        self.final(*texts)
        self.holds("one", T0)
        self.process("one", *range(count))
        return texts


# ---- what must not be


def gives_a_partition_to_two_members(script: GroupScript) -> None:
    script.holds("one", T0, T1)
    script.holds("two", T0)


def gives_it_twice_to_members_of_one_client(script: GroupScript) -> None:
    script.holds("one", T0, member="a")
    script.holds("one", T0, member="b")


def processes_what_was_given_back(script: GroupScript) -> None:
    script.final(*script.sent(2))
    script.holds("one", T0)
    script.process("one", 0)
    script.holds("one")
    script.process("one", 1)


def processes_before_it_has_joined(script: GroupScript) -> None:
    script.final(*script.sent(1))
    script.process("one", 0)


def commits_more_than_was_processed(script: GroupScript) -> None:
    script.final(*script.sent(3))
    script.holds("one", T0)
    script.process("one", 0, 1)
    script.commit("one", 3)
    script.process("one", 2)


def commits_over_a_record_that_was_left_out(script: GroupScript) -> None:
    script.final(*script.sent(3))
    script.holds("one", T0)
    script.process("one", 0, 2)
    script.commit("one", 3)
    script.process("one", 1)


def is_told_of_more_than_was_processed(script: GroupScript) -> None:
    script.final(*script.sent(3))
    script.holds("one", T0)
    script.process("one", 0, 1)
    script.ask("one", 3)
    script.committed(3)


def loses_an_acknowledged_commit(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 2)
    script.commit("one", 4)
    script.committed(2)


def forgets_all_commits(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 2)
    script.committed(-1)


def takes_back_what_somebody_was_told(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 2)
    script.ask("one", 4)
    script.committed(4)
    script.committed(2)


def carries_an_old_commit_out_under_another_coordinator(script: GroupScript) -> None:
    script.steady()
    script.coordinator_term(1)
    script.ask("one", 2)
    script.told("one", 2, "info")
    script.coordinator_term(2)
    script.commit("one", 4)
    script.committed(2)


def begins_a_lower_commit_later(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 4)
    script.commit("one", 2)
    script.committed(2)


def is_told_what_nobody_asked_for(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 2)
    script.committed(3)


def commits_for_a_member_of_an_older_generation(script: GroupScript) -> None:
    script.steady()
    script.holds("two", T0, generation=2)
    script.commit("one", 4, generation=1)


def leaves_a_record_out_to_the_end(script: GroupScript) -> None:
    script.final(*script.sent(3))
    script.holds("one", T0)
    script.process("one", 0, 2)
    script.calm(20_000)


BAD: dict[Story, tuple[str, str]] = {
    gives_a_partition_to_two_members: ("one-owner", "one-id and two-id own the partition"),
    gives_it_twice_to_members_of_one_client: ("one-owner", "a and b own the partition"),
    processes_what_was_given_back: ("one-owner", "has nothing in generation 1"),
    processes_before_it_has_joined: (
        "one-owner",
        "one of g processed a partition that is not assigned",
    ),
    commits_more_than_was_processed: ("committed-is-processed", "t-0@2: group g committed 3"),
    commits_over_a_record_that_was_left_out: (
        "committed-is-processed",
        "t-0@1: group g committed 3",
    ),
    is_told_of_more_than_was_processed: ("committed-is-processed", "for asker"),
    loses_an_acknowledged_commit: (
        "committed-never-falls",
        "had committed 4, and the answer is lower",
    ),
    forgets_all_commits: ("committed-never-falls", "had committed 2, and the answer is lower"),
    takes_back_what_somebody_was_told: ("committed-never-falls", "had committed 4"),
    carries_an_old_commit_out_under_another_coordinator: (
        "committed-never-falls",
        "commit of one in generation 1 of g",
    ),
    begins_a_lower_commit_later: ("committed-never-falls", "had committed 4"),
    is_told_what_nobody_asked_for: ("committed-was-asked", "t-0@3: no member of g"),
    commits_for_a_member_of_an_older_generation: (
        "stale-member-commits-nothing",
        "g was in generation 2",
    ),
    leaves_a_record_out_to_the_end: ("groups-process-all", "no member of g has processed a:1:1:"),
}


@pytest.mark.parametrize("story", BAD, ids=lambda story: str(story.__name__))
def test_a_broken_promise_is_found_by_its_rule_alone(story: Story) -> None:
    rule, text = BAD[story]
    script = GroupScript()
    story(script)
    found = check(script.history())
    assert [each.rule for each in found] == [rule], report(found)
    assert text in str(found[0])


# ---- what may be


def goes_through_a_rebalance(script: GroupScript) -> None:
    texts = script.sent(4)
    script.holds("one", T0, T1)
    script.process("one", 0, 1)
    script.commit("one", 2)
    script.holds("one", T1, generation=2)
    script.committed(2)
    script.holds("two", T0, generation=2)
    script.process("two", 2, 3)
    script.commit("two", 4, generation=2)
    script.committed(4)
    script.calm(20_000)
    script.final(*texts)


def processes_some_records_twice(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 2)
    script.holds("two", T0, generation=2)
    script.process("two", 2, 3)
    script.commit("two", 4, generation=2)


def keeps_the_member_of_an_instance(script: GroupScript) -> None:
    script.holds("one", T0, member="static")
    script.holds("one", T0, member="static")


def answers_a_question_of_before(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 4)
    script.committed(-1, asked=1)


def carries_out_a_commit_that_nobody_heard_of(script: GroupScript) -> None:
    script.steady()
    script.commit("one", 2)
    script.commit("one", 4, "info")
    script.committed(2)
    script.committed(4)


def lets_commits_of_one_coordinator_overtake_each_other(script: GroupScript) -> None:
    script.steady()
    script.coordinator_term(1)
    script.ask("one", 2)
    script.told("one", 2, "info")
    script.commit("one", 4)
    script.committed(4)
    script.committed(2)


def lets_commits_that_are_under_way_together_overtake_each_other(script: GroupScript) -> None:
    script.steady()
    script.ask("one", 2)
    script.commit("one", 4)
    script.told("one", 2)
    script.committed(2)


def repeats_a_commit_to_the_next_coordinator(script: GroupScript) -> None:
    script.steady()
    script.coordinator_term(1)
    script.ask("one", 2)
    script.coordinator_term(2)
    script.commit("one", 4)
    script.told("one", 2, "info")
    script.committed(2)


def commits_in_the_old_generation_while_the_next_begins(script: GroupScript) -> None:
    script.steady()
    script.ask("one", 4)
    script.holds("two", T0, generation=2)
    script.told("one", 4)


def does_not_judge_topics_that_are_made_anew(script: GroupScript) -> None:
    script.topic()
    script.holds("one", T0)
    script.commit("one", 4)
    script.deletion()
    script.topic()
    script.committed(-1)
    script.wait(20_000)
    script.final()


def does_not_judge_partitions_that_admit_losses(script: GroupScript) -> None:
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.steady()
    script.commit("one", 4)
    script.state(version=1, leader=2, epoch=1, isr=[2])
    script.loss()
    script.committed(2)


def lets_old_records_go_before_they_are_processed(script: GroupScript) -> None:
    texts = script.sent(3)
    script.final(texts[2], start=2)
    script.holds("one", T0)
    script.process("one", 2)
    script.commit("one", 3)
    script.calm(20_000)


def leaves_out_what_was_not_acknowledged(script: GroupScript) -> None:
    script.final(script.send(0, "info"))
    script.calm(20_000)


GOOD = (
    goes_through_a_rebalance,
    processes_some_records_twice,
    keeps_the_member_of_an_instance,
    answers_a_question_of_before,
    carries_out_a_commit_that_nobody_heard_of,
    lets_commits_of_one_coordinator_overtake_each_other,
    lets_commits_that_are_under_way_together_overtake_each_other,
    repeats_a_commit_to_the_next_coordinator,
    commits_in_the_old_generation_while_the_next_begins,
    does_not_judge_topics_that_are_made_anew,
    does_not_judge_partitions_that_admit_losses,
    lets_old_records_go_before_they_are_processed,
    leaves_out_what_was_not_acknowledged,
)


@pytest.mark.parametrize("story", GOOD, ids=lambda story: str(story.__name__))
def test_a_correct_history_passes_every_rule(story: Story) -> None:
    script = GroupScript()
    story(script)
    found = check(script.history())
    assert not found, report(found)


@pytest.mark.parametrize(
    "broker, begin_ns, end_ns, is_explained",
    [
        (1, -1, 1, True),
        (2, -1, 1, False),
        (1, 1, 1, False),  # it was replaced before that
        (1, -1, -1, False),  # it had heard of it when it was asked
    ],
)
def test_a_coordinator_that_could_not_know_that_its_session_had_been_ended_may_tell_less(
    broker: int, begin_ns: int, end_ns: int, is_explained: bool
) -> None:
    script = GroupScript()
    script.steady()
    script.coordinator_term(1)
    script.commit("one", 2)
    script.coordinator_term(2)
    script.commit("one", 4)
    script.committed(2)
    history = script.history()
    replaced, asked = history.groups.coordinator_terms[-1].at, history.groups.answers[-1].asked
    history.early_ends.append(EarlyEnd(broker, replaced + begin_ns, asked + end_ns))
    found = {each.rule for each in check(history)}
    assert found == (set() if is_explained else {"committed-never-falls"})


def test_but_what_it_was_told_itself_it_knows() -> None:
    script = GroupScript()
    script.steady()
    script.coordinator_term(1)
    script.commit("one", 4)
    script.coordinator_term(2)
    script.committed(2)
    history = script.history()
    replaced, asked = history.groups.coordinator_terms[-1].at, history.groups.answers[-1].asked
    history.early_ends.append(EarlyEnd(1, replaced - 1, asked + 1))
    assert "committed-never-falls" in {each.rule for each in check(history)}


def test_an_end_of_a_commit_that_nobody_began_is_refused() -> None:
    script = GroupScript()
    script.told("one", 4)
    with pytest.raises(ValueError, match="no line of type invoke"):
        script.history()
