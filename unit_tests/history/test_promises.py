"""Tests of the rules for a cluster as a whole, and of the effect of recreated topics and loss
receipts on all rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pybroker.testing.history.checker import check, report
from pybroker.testing.history.eras import split
from pybroker.testing.history.model import History
from unit_tests.history.script import T0, Script

Story = Callable[[Script], None]
STALE_MS = 10_000


def acknowledges_nothing_after_the_faults(script: Script) -> None:
    script.calm(20_000)
    script.send(0, "info")
    script.wait(30_000)
    script.final(script.send(1, 0))


def acknowledges_only_the_leaders_own_after_the_faults(script: Script) -> None:
    script.calm(20_000)
    script.send(0, "info")
    text = script.invoke(0, "leader-only")
    script.wait(21_000)
    script.add("leader-only", "send", "ok", v=text, off=0)
    script.final(text)


def leaves_a_replica_behind_after_the_faults(script: Script) -> None:
    script.topic((1, 2, 3))
    script.state(version=0, leader=1, epoch=0, isr=[1, 2])
    script.calm(20_000)
    script.wait(21_000)
    script.state(version=1, leader=1, epoch=0, isr=[1, 2, 3])


def has_no_leader_after_the_faults(script: Script) -> None:
    script.state(version=0, leader=-1, epoch=0, isr=[1])
    script.calm(20_000)
    script.wait(21_000)
    script.state(version=1, leader=-1, epoch=0, isr=[1])


def falls_back_after_it_was_well_at_the_end(script: Script) -> None:
    script.topic((1, 2, 3))
    script.state(version=0, leader=1, epoch=0, isr=[1, 2, 3])
    script.calm(20_000)
    script.wait(1_000)
    script.state(version=1, leader=1, epoch=0, isr=[1, 2])


def acknowledges_with_too_few_in_sync(script: Script) -> None:
    script.topic((1, 2, 3), min_isr=2)
    script.state(version=0, leader=1, epoch=0, isr=[1, 2, 3])
    script.state(version=1, leader=1, epoch=0, isr=[1])
    script.wait(STALE_MS)
    text = script.send(0, 0)
    script.state(version=2, leader=1, epoch=0, isr=[1, 2, 3])
    script.final(text)


def acknowledges_without_a_leader(script: Script) -> None:
    script.topic((1, 2, 3), min_isr=1)
    script.state(version=0, leader=-1, epoch=0, isr=[1])
    script.wait(STALE_MS)
    script.final(script.send(0, 0))


def admits_a_loss_that_nothing_explains(script: Script) -> None:
    script.loss()


def names_less_than_was_lost(script: Script) -> None:
    script.sent(3)
    script.loss((0, 1), (2, 3))
    script.final()


def names_nothing_of_what_was_lost(script: Script) -> None:
    script.send(0, -1)
    script.loss()
    script.final()


def names_what_an_earlier_topic_has_lost(script: Script) -> None:
    script.topic()
    script.sent(1)
    script.loss((0, 1))
    script.deletion()
    script.topic()
    script.wait(STALE_MS)
    script.send(1, 0)
    script.loss()
    script.final()


BAD: dict[Story, tuple[str, str]] = {
    names_less_than_was_lost: (
        "losses-named",
        "the loss receipts name the offsets [(0, 1), (2, 3)]",
    ),
    names_nothing_of_what_was_lost: ("losses-named", "the loss receipts name the offsets []"),
    names_what_an_earlier_topic_has_lost: ("losses-named", "the loss receipts name the offsets []"),
    acknowledges_nothing_after_the_faults: ("availability", "nothing was acknowledged"),
    acknowledges_only_the_leaders_own_after_the_faults: ("availability", "nothing was ack"),
    leaves_a_replica_behind_after_the_faults: (
        "availability",
        "broker 1 leads, brokers [3] are not in sync",
    ),
    has_no_leader_after_the_faults: ("availability", "-1 leads"),
    acknowledges_with_too_few_in_sync: ("refusal", "was acknowledged with the ISR (1,)"),
    acknowledges_without_a_leader: ("refusal", "was acknowledged with the ISR (1,)"),
    admits_a_loss_that_nothing_explains: ("admitted-losses", "unclean-election"),
}


def told(story: Story) -> History:
    script = Script()
    story(script)
    return replace(
        script.history(),
        may_lose=story is not admits_a_loss_that_nothing_explains,
        expires=story in EXPIRING,
    )


@pytest.mark.parametrize("story", BAD, ids=lambda story: str(story.__name__))
def test_a_broken_promise_is_found_by_its_rule_alone(story: Story) -> None:
    rule, text = BAD[story]
    found = check(told(story))
    assert [each.rule for each in found] == [rule], report(found)
    assert text in str(found[0])


def is_well_soon_after_the_faults(script: Script) -> None:
    script.topic((1, 2, 3))
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.calm(20_000)
    script.send(0, "info")
    script.state(version=1, leader=1, epoch=0, isr=[1, 2, 3])
    script.final(script.send(1, 0))


def is_over_before_it_has_to_be_well(script: Script) -> None:
    script.calm(20_000)
    script.send(0, "info")


def deletes_what_is_not_well(script: Script) -> None:
    script.topic((1, 2, 3))
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.calm(20_000)
    script.send(0, "info")
    script.deletion()


def acknowledges_before_a_leader_can_know(script: Script) -> None:
    script.topic((1, 2, 3), min_isr=2)
    script.state(version=0, leader=1, epoch=0, isr=[1, 2, 3])
    script.state(version=1, leader=1, epoch=0, isr=[1])
    script.final(script.send(0, 0))


def acknowledges_once_enough_are_in_sync(script: Script) -> None:
    script.topic((1, 2, 3), min_isr=2)
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.wait(STALE_MS)
    text = script.invoke(0)
    script.state(version=1, leader=1, epoch=0, isr=[1, 2])
    script.add("a", "send", "ok", v=text, off=0)
    script.final(text)


def has_fewer_replicas_than_are_asked_for(script: Script) -> None:
    script.topic((1,), min_isr=2)
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.wait(STALE_MS)
    script.final(script.send(0, 0))


def admits_an_election_of_whoever_is_left(script: Script) -> None:
    lost, kept = script.sent(2)
    script.assign()
    script.poll((0, lost), (1, kept))
    script.latest(2)
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.state(version=1, leader=2, epoch=1, isr=[2])
    script.loss((0, 1))
    script.add("reader", "poll", "fail", err="out of range", tp=script.partition, off=2)
    script.wait(STALE_MS)
    script.assign()
    fresh = script.send(2, 0)
    script.poll((0, fresh))
    script.latest(1)
    script.final(fresh, kept)


def names_what_was_lost_in_several_elections(script: Script) -> None:
    script.sent(3)
    script.send(3, -1)
    script.loss((1, 2), (0, 1))
    script.loss((2, 4))
    script.final()


def loses_what_the_power_took_along(script: Script) -> None:
    """After the power loss the log ends earlier. Its former end is unknown."""
    script.sent(2)
    script.loss((1, 2))
    script.loss(reason="power-loss")
    script.final()


def makes_a_topic_anew(script: Script) -> None:
    script.topic()
    script.state(version=0, leader=1, epoch=5)
    old, older = script.sent(2)
    script.assign()
    script.poll((0, old), (1, older))
    script.latest(2)
    script.deletion()
    caught = script.send(2, 2)
    script.topic()
    script.state(version=0, leader=2, epoch=0)
    script.state(version=1, leader=2, epoch=1)
    script.poll((2, caught))
    script.wait(STALE_MS)
    script.assign()
    fresh = script.send(3, 0)
    script.poll((0, fresh))
    script.latest(1)
    script.final(fresh)


def deletes_a_topic(script: Script) -> None:
    script.topic()
    texts = script.sent(2)
    script.assign()
    script.poll((0, texts[0]))
    script.deletion()
    script.send(2, "info")


def admits_a_loss_of_a_topic_that_is_made_anew(script: Script) -> None:
    script.topic()
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.state(version=1, leader=2, epoch=1, isr=[2])
    script.loss()
    script.deletion()
    script.topic()


def forgets_a_producer_with_the_topic(script: Script) -> None:
    """The producer sends two values while its topic is recreated. The second request reaches the
    recreated topic first, so its leader rejects the sequence number of the first request. The
    producer then sends both values again."""
    script.topic()
    text = script.invoke(0)
    script.deletion()
    script.topic()
    script.wait(STALE_MS)
    script.add("a", "send", "ok", v=text, off=1)
    script.final(text, text)


def has_fewer_partitions_than_the_topic_had_before(script: Script) -> None:
    script.topic()
    script.partition = ("t", 1)
    script.state(version=0, leader=1, epoch=0)
    script.partition = T0
    script.deletion()
    script.topic()
    script.wait(STALE_MS)
    script.calm(20_000)
    script.partition = ("t", 1)
    script.send(0, "info")
    script.wait(30_000)


def forgets_what_is_old(script: Script) -> None:
    script.topic()
    script.assign()
    script.add("reader", "poll", "fail", err="out of range", tp=script.partition, off=0)
    script.deletion()


def forgets_what_is_old_and_is_not_read_at_the_end(script: Script) -> None:
    """Without a final read the log start is unknown, so the reader may only have been too late."""
    script.assign()
    script.add("reader", "poll", "fail", err="out of range", tp=script.partition, off=0)


def keeps_the_second_try_of_what_is_old(script: Script) -> None:
    """The first attempt to send the old value was on an abandoned connection and arrived last."""
    old, new = script.sent(2, "b")
    script.final(new, old, start=1)


EXPIRING = {
    forgets_what_is_old,
    forgets_what_is_old_and_is_not_read_at_the_end,
    keeps_the_second_try_of_what_is_old,
}
GOOD = (
    is_well_soon_after_the_faults,
    is_over_before_it_has_to_be_well,
    falls_back_after_it_was_well_at_the_end,
    deletes_what_is_not_well,
    acknowledges_before_a_leader_can_know,
    acknowledges_once_enough_are_in_sync,
    has_fewer_replicas_than_are_asked_for,
    admits_an_election_of_whoever_is_left,
    names_what_was_lost_in_several_elections,
    loses_what_the_power_took_along,
    makes_a_topic_anew,
    deletes_a_topic,
    admits_a_loss_of_a_topic_that_is_made_anew,
    forgets_a_producer_with_the_topic,
    forgets_what_is_old,
    forgets_what_is_old_and_is_not_read_at_the_end,
    keeps_the_second_try_of_what_is_old,
    has_fewer_partitions_than_the_topic_had_before,
)


@pytest.mark.parametrize("story", GOOD, ids=lambda story: str(story.__name__))
def test_a_correct_history_passes_every_rule(story: Story) -> None:
    found = check(told(story))
    assert not found, report(found)


def loses_what_the_new_topic_acknowledged(script: Script) -> None:
    script.topic()
    script.deletion()
    script.topic()
    script.wait(STALE_MS)
    script.send(0, 0)
    script.final()


def loses_what_was_acknowledged_after_the_loss(script: Script) -> None:
    script.loss((0, 1))
    script.wait(STALE_MS)
    script.send(0, 0)
    script.final()


def reads_what_was_refused_by_the_old_topic(script: Script) -> None:
    script.topic()
    text = script.send(0, "fail")
    script.deletion()
    script.topic()
    script.final(text)


def gives_two_values_at_an_offset_of_the_old_topic(script: Script) -> None:
    script.topic()
    first, second = script.send(0, "info"), script.send(1, "info")
    script.poll((0, first), client="one")
    script.poll((0, second), client="other")
    script.deletion()


def stores_a_value_of_the_new_topic_twice(script: Script) -> None:
    script.topic()
    script.deletion()
    script.topic()
    script.wait(STALE_MS)
    text = script.send(0, 0)
    script.final(text, text)


def elects_who_was_not_in_sync_in_the_old_topic(script: Script) -> None:
    script.topic()
    script.state(version=0, leader=1, epoch=0, isr=[1])
    script.state(version=1, leader=2, epoch=1, isr=[2])
    script.deletion()
    script.topic()
    script.loss()


def lets_the_end_of_the_old_topic_go_back(script: Script) -> None:
    script.topic()
    script.latest(5)
    script.latest(4)
    script.deletion()
    script.topic()


def gives_an_epoch_of_the_old_topic_to_two_leaders(script: Script) -> None:
    script.topic()
    script.state(version=0, leader=1, epoch=1)
    script.state(version=1, leader=2, epoch=1)
    script.deletion()
    script.topic()
    script.state(version=0, leader=1, epoch=0)


def forgets_a_position_of_the_old_topic(script: Script) -> None:
    script.topic()
    script.assign()
    script.add("reader", "poll", "fail", err="out of range", tp=script.partition, off=0)
    script.deletion()


STILL_BAD: dict[Story, str] = {
    loses_what_the_new_topic_acknowledged: "acked-present",
    loses_what_was_acknowledged_after_the_loss: "acked-present",
    reads_what_was_refused_by_the_old_topic: "no-phantom",
    gives_two_values_at_an_offset_of_the_old_topic: "one-value-per-offset",
    forgets_a_position_of_the_old_topic: "consumer-order",
    stores_a_value_of_the_new_topic_twice: "duplicates",
    elects_who_was_not_in_sync_in_the_old_topic: "clean-elections",
    lets_the_end_of_the_old_topic_go_back: "monotone-watermarks",
    gives_an_epoch_of_the_old_topic_to_two_leaders: "epochs",
}


@pytest.mark.parametrize("story", STILL_BAD, ids=lambda story: str(story.__name__))
def test_an_era_excuses_nothing_within_itself(story: Story) -> None:
    found = check(told(story))
    assert [each.rule for each in found] == [STILL_BAD[story]], report(found)


def test_a_history_of_one_era_is_not_copied() -> None:
    history = told(is_well_soon_after_the_faults)
    assert split(history) is history


def test_a_change_of_a_topic_that_is_gone_is_refused() -> None:
    script = Script()
    script.topic()
    script.deletion()
    script.deletion()
    with pytest.raises(ValueError, match="does not exist"):
        script.history()
