"""Tests of the assignment strategies, against tables computed by hand and Kafka's documentation."""

from __future__ import annotations

import random

import pytest

from pybroker.classic.assignment import (
    NoRoundRobin,
    ThreadId,
    assign_range,
    assign_roundrobin,
    java_hash,
)
from pybroker.model import TopicPartition


def shown(assignment: dict[TopicPartition, ThreadId]) -> dict[str, str]:
    return {str(key): str(thread) for key, thread in assignment.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("hello", 99162322),
        ("[t,0]", 87540032),  # (((91 * 31 + 116) * 31 + 44) * 31 + 48) * 31 + 93
        ("[orders,10]", 458862962),
        ("polygenelubricants", -2147483648),
        ("\U0001f600", 1772899),  # two units: 0xD83D * 31 + 0xDE00
    ],
)
def test_strings_have_the_hashes_that_java_gives_them(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_the_example_of_kafkas_documentation() -> None:
    """Two consumers with two streams each, five partitions."""
    found = assign_range({"C1": {"t": 2}, "C2": {"t": 2}}, {"t": range(5)})
    assert shown(found) == {
        "t-0": "C1-0",
        "t-1": "C1-0",
        "t-2": "C1-1",
        "t-3": "C2-0",
        "t-4": "C2-1",
    }


def test_threads_are_ordered_as_text() -> None:
    found = assign_range({"C": {"t": 11}}, {"t": range(11)})
    order = ["0", "1", "10", "2", "3", "4", "5", "6", "7", "8", "9"]
    assert list(shown(found).values()) == [f"C-{number}" for number in order]


def test_with_more_threads_than_partitions_the_last_threads_get_none() -> None:
    found = assign_range({"B": {"t": 2}, "A": {"t": 1}}, {"t": [0, 1]})
    assert shown(found) == {"t-0": "A-0", "t-1": "B-0"}


def test_range_divides_each_topic_among_its_consumers() -> None:
    streams = {"A": {"t": 1, "u": 1}, "B": {"t": 1}}
    found = assign_range(streams, {"t": [0, 1, 2], "u": [0, 1], "unread": [0]})
    assert shown(found) == {
        "t-0": "A-0",
        "t-1": "A-0",
        "t-2": "B-0",
        "u-0": "A-0",
        "u-1": "A-0",
    }


def test_range_accepts_gaps_in_partition_numbers() -> None:
    assert shown(assign_range({"A": {"t": 1}, "B": {"t": 1}}, {"t": [0, 2, 5]})) == {
        "t-0": "A-0",
        "t-2": "A-0",
        "t-5": "B-0",
    }


def test_roundrobin_deals_in_the_order_of_hashes() -> None:
    """Java's hashes of [t,0], [t,1], [t,2] are 87540032, 87540063 and 87540094, that of [t,10] is
    -1581226645, so t-10 comes first."""
    streams = {"B": {"t": 1}, "A": {"t": 2}}
    assert shown(assign_roundrobin(streams, {"t": [0, 1, 2, 10]})) == {
        "t-10": "A-0",
        "t-0": "A-1",
        "t-1": "B-0",
        "t-2": "A-0",
    }


def test_roundrobin_mixes_topics() -> None:
    streams = {"A": {"t": 1, "u": 1}, "B": {"t": 1, "u": 1}}
    found = assign_roundrobin(streams, {"t": [0, 1], "u": [0]})
    assert shown(found) == {"t-0": "A-0", "t-1": "B-0", "u-0": "A-0"}


@pytest.mark.parametrize(
    "streams",
    [
        {"A": {"t": 1, "u": 1}, "B": {"t": 1}},
        {"A": {"t": 1, "u": 2}},
    ],
)
def test_roundrobin_requires_the_same_subscription_of_all_members(
    streams: dict[str, dict[str, int]],
) -> None:
    with pytest.raises(NoRoundRobin, match="different numbers for the topics t and u"):
        assign_roundrobin(streams, {"t": [0], "u": [0]})


def test_a_group_without_members_has_no_assignment() -> None:
    assert assign_range({}, {"t": [0]}) == {}
    assert assign_roundrobin({}, {}) == {}


@pytest.mark.parametrize("assign", [assign_range, assign_roundrobin])
def test_every_partition_has_one_owner_and_shares_differ_by_one(assign: object) -> None:
    assert callable(assign)
    dice = random.Random(1)
    for _ in range(200):
        members = {f"m{number}": {"t": dice.randint(1, 4)} for number in range(dice.randint(1, 9))}
        numbers = range(dice.randint(0, 40))
        found = assign(members, {"t": numbers})
        assert {key.partition for key in found} == set(numbers)
        shares = [list(found.values()).count(thread) for thread in set(found.values())]
        assert not shares or max(shares) - min(shares) <= 1
