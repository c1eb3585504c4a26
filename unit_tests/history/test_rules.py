"""Tests of each rule: a history that violates the rule is reported with its position and
operations, and a history that follows the rule is not reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pybroker.testing.history.checker import RULES, check, repeated, report
from unit_tests.history import (
    test_group_rules,
    test_keyed_rules,
    test_promises,
    test_transaction_rules,
)
from unit_tests.history.script import T0, Script, value

Story = Callable[[Script], None]


def loses_an_acknowledged_value(script: Script) -> None:
    first, _, third = script.sent(3)
    script.final(first, None, third)


def loses_the_end(script: Script) -> None:
    first, _ = script.sent(2)
    script.final(first)


def keeps_an_acknowledged_value_elsewhere(script: Script) -> None:
    first, second = script.sent(2)
    script.final(first, None, second)


def loses_a_value_whose_offset_was_not_told(script: Script) -> None:
    script.send(0, -1)
    script.final(None)


def never_reads_the_partition(script: Script) -> None:
    script.sent(1)


def reads_what_nobody_sent(script: Script) -> None:
    script.assign()
    script.poll((0, value(7)))
    script.final(value(7))


def reads_what_was_refused(script: Script) -> None:
    script.final(script.send(0, "fail"))


def reads_a_damaged_value(script: Script) -> None:
    text = script.send(0, "info")
    script.final(text[:-1] + ("0" if text[-1] != "0" else "1"))


def reads_a_value_of_another_partition(script: Script) -> None:
    text = script.send(0, "info")
    script.partition = ("t", 1)
    script.final(text)


def reads_two_values_at_an_offset(script: Script) -> None:
    first, second = script.send(0, "info"), script.send(1, "info")
    script.assign(client="one")
    script.assign(client="other")
    script.poll((0, first), client="one")
    script.poll((0, second), client="other")
    script.final(first)


def acknowledges_two_values_at_an_offset(script: Script) -> None:
    script.send(0, 0)
    script.final(script.send(1, 0))


def stores_an_idempotent_value_twice(script: Script) -> None:
    text = script.send(0, 0)
    script.final(text, text)


def stores_a_value_twice_in_one_epoch(script: Script) -> None:
    text = script.send(0, 0, "anew")
    script.final(text, text)
    script.files(1, [[0, 0, 0, "x", "7/0"], [1, 1, 0, "y", "7/0"]])


def stores_values_in_another_order(script: Script) -> None:
    script.send(0, 1)
    script.send(1, 0)
    script.final(value(1), value(0))


def stores_values_of_one_request_at_a_time_in_another_order(script: Script) -> None:
    script.send(0, 1, "b")
    script.send(1, 0, "b")
    script.final(value(1, "b"), value(0, "b"))


def gives_an_offset_twice_to_a_consumer(script: Script) -> None:
    first, second = script.sent(2)
    script.assign()
    script.poll((0, first), (1, second))
    script.poll((1, second))
    script.final(first, second)


def leaves_out_a_record_in_a_poll(script: Script) -> None:
    first, second, third = script.sent(3)
    script.assign()
    script.poll((0, first), (2, third))
    script.final(first, second, third)


def leaves_out_a_record_between_polls(script: Script) -> None:
    first, second, third = script.sent(3)
    script.assign()
    script.poll((0, first))
    script.poll((2, third))
    script.final(first, second, third)


def leaves_out_the_first_record(script: Script) -> None:
    first, second = script.sent(2)
    script.assign(0)
    script.poll((1, second))
    script.final(first, second)


def takes_a_consumers_position_away(script: Script) -> None:
    script.add("reader", "poll", "fail", err="OFFSET_OUT_OF_RANGE")
    script.final()


def goes_back_with_the_end(script: Script) -> None:
    script.latest(5)
    script.latest(4)


def ends_below_what_was_delivered(script: Script) -> None:
    first, second = script.sent(2, "leader-only")
    script.assign()
    script.poll((0, first), (1, second))
    script.latest(1)
    script.final(first, second)


def ends_below_what_was_acknowledged(script: Script) -> None:
    texts = script.sent(2)
    script.latest(1)
    script.final(*texts)


def loses_what_was_delivered(script: Script) -> None:
    text = script.send(0, "info")
    script.assign()
    script.poll((0, text))
    script.final()


def replaces_what_was_delivered(script: Script) -> None:
    first, second = script.send(0, "info"), script.send(1, "info")
    script.assign()
    script.poll((0, first))
    script.final(second)


def stores_different_bytes(script: Script) -> None:
    script.files(1, [[0, 4, 0, "same"], [5, 9, 0, "one"]])
    script.files(2, [[0, 4, 0, "same"], [5, 9, 0, "other"]])


def lacks_the_last_batch_in_a_replica(script: Script) -> None:
    script.files(1, [[0, 4, 0, "same"], [5, 9, 0, "one"]])
    script.files(2, [[0, 4, 0, "same"]])


def knows_different_epochs(script: Script) -> None:
    for broker, start in ((1, 5), (2, 4)):
        script.files(broker, [[0, 4, 0, "x"], [5, 9, 1, "y"]], epochs=[(0, 0), (1, start)])


def knows_different_producers(script: Script) -> None:
    for broker, epoch in ((1, 5), (2, 4)):
        script.files(broker, [[0, 4, 0, "x"]], producers=[f"7 epoch {epoch}"])


def reads_differently_from_two_replicas(script: Script) -> None:
    first, second = script.sent(2)
    script.final(first, second)
    script.final(first, source="replica 2")


def lets_epochs_fall_along_the_log(script: Script) -> None:
    script.final(*script.sent(3), epochs=[1, 2, 1])


def lets_epochs_fall_along_the_files(script: Script) -> None:
    script.files(1, [[0, 4, 3, "x"], [5, 9, 2, "y"]])


def gives_an_epoch_to_two_leaders(script: Script) -> None:
    script.state(version=1, leader=1, epoch=4)
    script.state(version=2, leader=2, epoch=4)


def lets_the_leader_epoch_fall(script: Script) -> None:
    script.state(version=2, leader=1, epoch=4)
    script.state(version=1, leader=2, epoch=5)


def lets_the_controller_epoch_fall(script: Script) -> None:
    script.state(version=1, leader=1, epoch=4, controller_epoch=3)
    script.state(version=2, leader=1, epoch=5, controller_epoch=2)


def gives_a_controller_epoch_to_two_brokers(script: Script) -> None:
    script.controller_term(3, 1)
    script.controller_term(3, 2)


def has_a_leader_that_is_not_in_sync(script: Script) -> None:
    script.state(version=1, leader=1, epoch=4, isr=[2, 3])


def elects_who_was_not_in_sync(script: Script) -> None:
    script.state(version=1, leader=1, epoch=4, isr=[1, 2])
    script.state(version=2, leader=3, epoch=5, isr=[3])


BAD: dict[Story, tuple[str, int, str]] = {
    loses_an_acknowledged_value: ("acked-present", 1, "send a:1:1:"),
    loses_the_end: ("acked-present", 1, "send a:1:1:"),
    keeps_an_acknowledged_value_elsewhere: ("acked-present", 1, "send a:1:1:"),
    loses_a_value_whose_offset_was_not_told: ("acked-present", -1, "send a:1:0:"),
    never_reads_the_partition: ("acked-present", 0, "send a:1:0:"),
    reads_what_nobody_sent: ("no-phantom", 0, "poll of reader"),
    reads_what_was_refused: ("no-phantom", 0, "because"),
    reads_a_damaged_value: ("no-phantom", 0, "final read by leader"),
    reads_a_value_of_another_partition: ("no-phantom", 0, "final read by leader"),
    reads_two_values_at_an_offset: ("one-value-per-offset", 0, "poll of other"),
    acknowledges_two_values_at_an_offset: ("one-value-per-offset", 0, "send a:1:1:"),
    stores_an_idempotent_value_twice: ("duplicates", 1, "send a:1:0:"),
    stores_a_value_twice_in_one_epoch: ("duplicates", 1, "send anew:1:0:"),
    stores_values_in_another_order: ("producer-order", 1, "send a:1:0:"),
    stores_values_of_one_request_at_a_time_in_another_order: ("producer-order", 1, "send b:1:0:"),
    gives_an_offset_twice_to_a_consumer: ("consumer-order", 1, "poll of reader"),
    leaves_out_a_record_in_a_poll: ("consumer-order", 1, "poll of reader"),
    leaves_out_a_record_between_polls: ("consumer-order", 1, "poll of reader"),
    leaves_out_the_first_record: ("consumer-order", 0, "its assignment"),
    takes_a_consumers_position_away: ("consumer-order", -1, ""),
    goes_back_with_the_end: ("monotone-watermarks", 4, "latest offset 5"),
    ends_below_what_was_delivered: ("monotone-watermarks", 1, "poll of reader"),
    ends_below_what_was_acknowledged: ("monotone-watermarks", 1, "send a:1:1:"),
    loses_what_was_delivered: ("read-implies-durable", 0, "poll of reader"),
    replaces_what_was_delivered: ("read-implies-durable", 0, "poll of reader"),
    stores_different_bytes: ("replicas-identical", 5, "broker 2: Batch(first=5"),
    lacks_the_last_batch_in_a_replica: ("replicas-identical", 5, "broker 2: None"),
    knows_different_epochs: ("replicas-identical", -1, "broker 2: [(0, 0), (1, 4)]"),
    knows_different_producers: ("replicas-identical", -1, "broker 1: ('7 epoch 5',)"),
    reads_differently_from_two_replicas: ("replicas-identical", 1, ""),
    lets_epochs_fall_along_the_log: ("epochs", 2, "final read by leader"),
    lets_epochs_fall_along_the_files: ("epochs", 5, "files of broker 1"),
    gives_an_epoch_to_two_leaders: ("epochs", -1, ""),
    lets_the_leader_epoch_fall: ("epochs", -1, ""),
    lets_the_controller_epoch_fall: ("epochs", -1, ""),
    gives_a_controller_epoch_to_two_brokers: ("epochs", -1, ""),
    has_a_leader_that_is_not_in_sync: ("clean-elections", -1, ""),
    elects_who_was_not_in_sync: ("clean-elections", -1, ""),
}
"""The story, and of the violation: the rule, the offset, and a part of the displayed operations."""


@pytest.mark.parametrize("story", BAD, ids=lambda story: str(story.__name__))
def test_a_bad_history_is_reported_with_its_place_and_its_operations(story: Story) -> None:
    rule, offset, shown = BAD[story]
    script = Script()
    story(script)
    found = list(RULES[rule](script.history()))
    assert len(found) == 1, report(found)
    assert (found[0].rule, found[0].offset) == (rule, offset)
    assert shown in "\n".join(found[0].ops)
    if offset >= 0 and found[0].partition == T0:
        assert f"{rule} t-0@{offset}: " in report(found)


def test_every_rule_has_a_bad_history() -> None:
    promises = {rule for rule, _ in test_promises.BAD.values()}
    groups = {rule for rule, _ in test_group_rules.BAD.values()}
    transactions = {rule for rule, _ in test_transaction_rules.BAD.values()}
    keyed = {rule for rule, _ in test_keyed_rules.BAD.values()}
    found = {rule for rule, _, _ in BAD.values()} | promises | groups | transactions | keyed
    assert found == set(RULES)


def lives_quietly(script: Script) -> None:
    texts = script.sent(3)
    script.assign()
    script.poll((0, texts[0]))
    script.latest(3)
    script.poll((1, texts[1]), (2, texts[2]))
    script.final(*texts, epochs=[0, 0, 1])
    script.final(*texts, epochs=[0, 0, 1], source="again")
    for broker in (1, 2, 3):
        script.files(broker, [[0, 2, 0, "x"]], producers=["7"])
    script.state(version=0, leader=1, epoch=0)
    script.state(version=1, leader=1, epoch=0)
    script.state(version=2, leader=2, epoch=1, isr=[2, 3])
    script.state(version=3, leader=-1, epoch=2, isr=[3], eligible=[2])
    script.state(version=4, leader=2, epoch=3, isr=[2])
    script.state(version=6, leader=1, epoch=4)  # one was not seen
    script.controller_term(1, 1)
    script.controller_term(1, 1)
    script.controller_term(2, 3)


def does_not_know_what_became_of_a_value(script: Script) -> None:
    stored, _, open_end = script.send(0, "info"), script.send(1, "info"), script.invoke(2)
    script.final(stored, open_end)


def repeats_values_of_a_producer_that_may(script: Script) -> None:
    first, second = script.send(0, 0, "b"), script.send(1, 1, "b")
    script.final(first, second, first, second)


def stores_a_value_again_in_the_next_epoch(script: Script) -> None:
    text = script.send(0, 1, "anew")
    script.final(text, text)
    script.files(1, [[0, 0, 0, "x", "7/0"], [1, 1, 0, "y", "7/1"]])


def stores_late_what_a_producer_gave_up(script: Script) -> None:
    given_up = script.send(0, "info", "b")
    later = script.send(1, 0, "b")
    script.final(later, given_up)


def mixes_the_order_of_a_producer_that_may(script: Script) -> None:
    script.send(0, 1, "c")
    script.send(1, 0, "c")
    script.final(value(1, "c"), value(0, "c"))


def loses_what_only_the_leader_had(script: Script) -> None:
    script.send(0, 0, "leader-only")
    script.final()


def has_offsets_without_a_record(script: Script) -> None:
    first, second = script.send(0, 0), script.send(1, 2)
    script.assign()
    script.poll((0, first), (2, second))
    script.final(first, None, second)


def forgets_old_records(script: Script) -> None:
    first, second = script.sent(2)
    script.assign()
    script.poll((0, first), (1, second))
    script.final(second, start=1)


def begins_a_consumer_anew(script: Script) -> None:
    texts = script.sent(2)
    script.assign()
    script.poll((0, texts[0]), (1, texts[1]))
    script.assign(1)
    script.poll((1, texts[1]))
    script.final(*texts)


def answers_a_question_that_was_asked_before(script: Script) -> None:
    script.latest(0, asked=1)
    text = script.send(0, 0)
    script.latest(0, asked=2)
    script.latest(1)
    script.latest(0, asked=3)
    script.final(text)


def has_bent_what_retention_has_taken(script: Script) -> None:
    batches = [[0, 4, 2**21, "bent"], [5, 9, 1, "y"]]
    for broker in (1, 2, 3):
        script.files(broker, batches, start=5, epochs=[(1, 5)])


def has_other_segments_and_empty_epochs(script: Script) -> None:
    batches = [[0, 4, 0, "x"], [5, 9, 2, "y"]]
    script.files(1, batches, epochs=[(0, 0), (1, 5), (2, 5)])
    script.files(2, batches[1:], start=5, epochs=[(2, 5)])
    script.files(3, [*batches, [10, 12, 2, "above the high watermark"]], epochs=[(0, 0), (2, 5)])


GOOD = (
    lives_quietly,
    does_not_know_what_became_of_a_value,
    repeats_values_of_a_producer_that_may,
    stores_a_value_again_in_the_next_epoch,
    stores_late_what_a_producer_gave_up,
    mixes_the_order_of_a_producer_that_may,
    loses_what_only_the_leader_had,
    has_offsets_without_a_record,
    forgets_old_records,
    begins_a_consumer_anew,
    answers_a_question_that_was_asked_before,
    has_bent_what_retention_has_taken,
    has_other_segments_and_empty_epochs,
)


@pytest.mark.parametrize("story", GOOD, ids=lambda story: str(story.__name__))
def test_a_good_history_passes_every_rule(story: Story) -> None:
    script = Script()
    story(script)
    found = check(script.history())
    assert not found, report(found)


def test_values_that_stand_more_than_once_are_counted() -> None:
    script = Script()
    repeats_values_of_a_producer_that_may(script)
    assert repeated(script.history()) == 2


def test_a_report_counts_everything_and_shows_the_first() -> None:
    script = Script()
    script.sent(50)
    script.final()
    text = report(check(script.history()))
    assert "acked-present: 50 violations" in text
    assert "acked-present t-0@4: " in text
    assert "t-0@30" not in text
