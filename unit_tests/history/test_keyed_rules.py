"""Tests of the rules for compacted topics: each breach is found by its rule alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pybroker.testing.history.checker import check
from pybroker.testing.history.keyed import KeyedRead, KeyedRecord, KeyedSend
from pybroker.testing.history.model import NANOSECONDS, History, State, TopicLife

TOPIC = "keyed"
PARTITION = (TOPIC, 0)
END_S = 100
SHORT_S, LONG_S = 1, 1_000


def sent(
    history: History,
    offset: int,
    key: str,
    value: str | None,
    outcome: str = "ok",
    begun_s: int = 0,
) -> None:
    begun = begun_s * NANOSECONDS
    ended = begun + NANOSECONDS if outcome == "ok" else 0
    history.keyed.sends.append(
        KeyedSend(PARTITION, key, value, begun, outcome=outcome, ended=ended, offset=offset)
    )


def found(history: History, broker: int, *records: tuple[int, str, str | None]) -> None:
    rows = tuple(KeyedRecord(*record) for record in records)
    at = END_S * NANOSECONDS
    history.keyed.reads.append(KeyedRead(PARTITION, "files", at, at, 0, 10, rows, True, broker))


def story(delete_retention_s: int = LONG_S, isr: tuple[int, ...] = (1, 2)) -> History:
    """Return a history in which key a is 1 and then 2, and key b is 3 and then deleted."""
    history = History()
    history.keyed.delete_retention = delete_retention_s * NANOSECONDS
    history.lives.append(TopicLife(TOPIC, 0, {0: (1, 2)}))
    history.states.append(State(PARTITION, 0, 1, 0, isr, (), 0, 0))
    sent(history, 0, "a", "1")
    sent(history, 1, "b", "3")
    sent(history, 2, "a", "2")
    sent(history, 3, "b", None)
    return history


def loses_the_last_value(history: History) -> None:
    found(history, 1, (0, "a", "1"), (3, "b", None))


def loses_a_key(history: History) -> None:
    found(history, 1, (3, "b", None))


def moves_a_record(history: History) -> None:
    found(history, 1, (3, "b", None), (4, "a", "2"))


def finds_an_aborted_record(history: History) -> None:
    sent(history, 5, "a", "6", "fail", begun_s=10)
    found(history, 1, (2, "a", "2"), (3, "b", None), (5, "a", "6"))


def finds_what_was_never_sent(history: History) -> None:
    found(history, 1, (2, "a", "2"), (3, "b", None), (7, "c", "8"))


def finds_a_tombstone_that_was_never_sent(history: History) -> None:
    found(history, 1, (2, "a", "2"), (3, "b", None), (7, "a", None))


def finds_records_out_of_order(history: History) -> None:
    found(history, 1, (3, "b", None), (2, "a", "2"))


def drops_the_tombstone(history: History) -> None:
    found(history, 1, (2, "a", "2"))


def has_another_value_in_one_replica(history: History) -> None:
    sent(history, -1, "a", "9", "info", begun_s=10)
    found(history, 1, (2, "a", "2"), (3, "b", None))
    found(history, 2, (3, "b", None), (5, "a", "9"))


BAD: dict[str, tuple[str, Callable[[History], None]]] = {
    breach.__name__: (rule, breach)
    for rule, breach in (
        ("compaction-keeps-latest", loses_the_last_value),
        ("compaction-keeps-latest", loses_a_key),
        ("compaction-keeps-offsets", moves_a_record),
        ("compaction-keeps-offsets", finds_an_aborted_record),
        ("compaction-keeps-offsets", finds_what_was_never_sent),
        ("compaction-keeps-offsets", finds_a_tombstone_that_was_never_sent),
        ("compaction-keeps-offsets", finds_records_out_of_order),
        ("tombstone-kept", drops_the_tombstone),
        ("compacted-replicas-agree", has_another_value_in_one_replica),
    )
}


@pytest.mark.parametrize("name", BAD)
def test_breach_is_found_by_its_rule_alone(name: str) -> None:
    rule, breach = BAD[name]
    history = story()
    breach(history)
    assert {each.rule for each in check(history)} == {rule}


@pytest.mark.parametrize(("isr", "is_breach"), [((1, 2), True), ((1,), False)])
def test_deleted_value_comes_back_only_in_replica_that_was_behind(
    isr: tuple[int, ...], is_breach: bool
) -> None:
    history = story(SHORT_S, isr)
    found(history, 2, (1, "b", "3"), (2, "a", "2"))
    assert {each.rule for each in check(history)} == (
        {"compaction-keeps-latest"} if is_breach else set()
    )


@pytest.mark.parametrize("value", [None, "6"])
@pytest.mark.parametrize(("isr", "is_breach"), [((1, 2), True), ((1,), False)])
def test_aborted_record_is_found_only_in_replica_that_missed_the_marker(
    value: str | None, isr: tuple[int, ...], is_breach: bool
) -> None:
    history = story(SHORT_S, isr)
    sent(history, 5, "a", value, "fail", begun_s=10)
    found(history, 2, (2, "a", "2"), (5, "a", value))
    assert {each.rule for each in check(history)} == (
        {"compaction-keeps-offsets"} if is_breach else set()
    )


def test_tombstone_may_go_after_delete_retention() -> None:
    history = story(SHORT_S)
    found(history, 1, (2, "a", "2"))
    assert not check(history)


def test_tombstone_of_unknown_outcome_may_have_removed_the_last_value() -> None:
    history = story(SHORT_S)
    sent(history, -1, "a", None, "info", begun_s=10)
    found(history, 1)
    assert not check(history)
