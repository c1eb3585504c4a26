"""Tests of the placement of replicas: spread over brokers and racks, balanced, and exactly by
Kafka's rule."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.coordinator.controller.placement import alternate_racks, assign_replicas
from pybroker.model import Broker


class Draws:
    """An `Rng` that returns these numbers."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = list(numbers)

    def randrange(self, stop: int, /) -> int:
        return self._numbers.pop(0) % stop

    def randbytes(self, n: int, /) -> bytes:
        return bytes(n)


def brokers(*ids: int, racks: dict[int, str] | None = None) -> list[Broker]:
    return [Broker(broker_id, (), (racks or {}).get(broker_id)) for broker_id in ids]


def test_the_rule_without_racks() -> None:
    """Five brokers, start 0, shift 0. The distance of the followers grows by one each time that the
    first replicas have gone through all brokers."""
    assert assign_replicas(brokers(0, 1, 2, 3, 4), 10, 3, Draws(0, 0)) == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_the_rule_with_racks() -> None:
    """Six brokers in three racks, start 0, shift 0."""
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternate_racks(racks) == [0, 3, 1, 5, 4, 2]
    assert assign_replicas(brokers(*range(6), racks=racks), 7, 3, Draws(0, 0)) == {
        0: (0, 3, 1),
        1: (3, 1, 5),
        2: (1, 5, 4),
        3: (5, 4, 2),
        4: (4, 2, 0),
        5: (2, 0, 3),
        6: (0, 4, 2),
    }


@pytest.mark.parametrize(
    ("ids", "start", "shift", "first_partition", "expected"),
    [
        (
            (1, 2, 3),
            *(1, 2, 0),
            [(2, 3, 1), (3, 1, 2), (1, 2, 3), (2, 1, 3), (3, 2, 1), (1, 3, 2), (2, 3, 1)],
        ),
        (
            (0, 1, 2, 3),
            *(3, 1, 0),
            [(3, 1), (0, 2), (1, 3), (2, 0), (3, 2), (0, 3), (1, 0), (2, 1), (3, 0)],
        ),
        ((30, 10, 20), *(0, 0, 0), [(10, 20), (20, 30), (30, 10), (10, 30)]),
        ((1, 2, 3), *(0, 0, 2), [(3, 1), (1, 3), (2, 1)]),
        ((7,), *(0, 0, 0), [(7,), (7,)]),
        ((1, 2), *(1, 1, 0), [(2, 1), (1, 2), (2, 1), (1, 2)]),
    ],
)
def test_start_and_shift_without_racks(
    ids: tuple[int, ...],
    start: int,
    shift: int,
    first_partition: int,
    expected: list[tuple[int, ...]],
) -> None:
    """The expected replicas were computed by hand. The first replica of partition p is on broker
    number (p + start) of n brokers. Follower j is (1 + (shift + j) % (n - 1)) brokers behind it.
    The shift grows by one each time that the first replicas have gone through all brokers."""
    found = assign_replicas(
        brokers(*ids), len(expected), len(expected[0]), Draws(start, shift), first_partition
    )
    assert found == dict(enumerate(expected, first_partition))


@pytest.mark.parametrize(
    ("racks", "start", "shift", "expected"),
    [
        (
            {0: "a", 1: "b", 2: "a", 3: "b"},
            *(1, 1),
            [(1, 0), (2, 1), (3, 2), (0, 3), (1, 0), (2, 1), (3, 2)],
        ),
        ({0: "a", 1: "b", 2: "a", 3: "b"}, *(1, 1), [(1, 0, 2), (2, 1, 3)]),
        ({1: "a", 2: "a", 3: "a"}, *(0, 0), [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2)]),
        ({1: "a", 2: "a", 3: "b"}, *(0, 0), [(1, 3), (3, 2), (2, 3)]),
    ],
)
def test_start_and_shift_with_racks(
    racks: dict[int, str], start: int, shift: int, expected: list[tuple[int, ...]]
) -> None:
    """The expected replicas were computed by hand, as without racks, from the list of brokers that
    alternates racks. The shift counts times the number of racks. A broker is skipped if it has a
    replica, or if its rack has one while another rack has none."""
    found = assign_replicas(
        brokers(*racks, racks=racks), len(expected), len(expected[0]), Draws(start, shift)
    )
    assert found == dict(enumerate(expected))


def test_a_fixed_start_is_also_the_shift() -> None:
    fixed = assign_replicas(brokers(1, 2, 3, 4), 9, 3, Draws(), start=2)
    assert fixed == assign_replicas(brokers(1, 2, 3, 4), 9, 3, Draws(2, 2))


def test_new_partitions_continue_the_placement_of_the_topic() -> None:
    whole = assign_replicas(brokers(1, 2, 3), 6, 2, Draws(0, 0))
    tail = assign_replicas(brokers(1, 2, 3), 2, 2, Draws(0, 1), first_partition=4)
    assert tail == {key: whole[key] for key in (4, 5)}


def test_some_racks_unknown_means_no_racks() -> None:
    some = brokers(1, 2, 3, racks={1: "a", 2: "a"})
    assert assign_replicas(some, 9, 2, Draws(1, 2)) == assign_replicas(
        brokers(1, 2, 3), 9, 2, Draws(1, 2)
    )


@pytest.mark.parametrize(("partitions", "factor"), [(1, 0), (1, 4), (0, 1)])
def test_a_placement_that_does_not_fit_is_refused(partitions: int, factor: int) -> None:
    with pytest.raises(ValueError):
        assign_replicas(brokers(1, 2, 3), partitions, factor, Draws(0, 0))


@settings(max_examples=60)
@given(
    count=st.integers(1, 9),
    partitions=st.integers(1, 40),
    factor=st.integers(1, 9),
    seed=st.integers(0, 999),
    rack_count=st.integers(0, 4),
)
def test_replicas_are_distinct_and_leaders_balanced(
    count: int, partitions: int, factor: int, seed: int, rack_count: int
) -> None:
    factor = min(factor, count)
    racks = {key: f"rack{key % rack_count}" for key in range(count)} if rack_count else None
    assignment = assign_replicas(
        brokers(*range(count), racks=racks), partitions, factor, random.Random(seed)
    )
    assert sorted(assignment) == list(range(partitions))
    leaders = Counter(dict.fromkeys(range(count), 0))
    for replicas in assignment.values():
        assert len(set(replicas)) == len(replicas) == factor
        leaders[replicas[0]] += 1
        if racks is not None:
            used = Counter(racks[replica] for replica in replicas)
            assert len(used) == min(factor, len(set(racks.values())))
    assert max(leaders.values()) - min(leaders.values()) <= 1


@given(st.dictionaries(st.integers(0, 30), st.sampled_from("abc"), min_size=1))
def test_alternating_keeps_every_broker_once(racks: dict[int, str]) -> None:
    order = alternate_racks(racks)
    assert sorted(order) == sorted(racks)
    sizes = Counter(racks.values())
    if len(set(sizes.values())) == 1 and len(sizes) > 1:
        assert all(racks[one] != racks[other] for one, other in pairwise(order))
