"""Tests of whether the restart of a static member makes its group rebalance. The tests of the
rebalance itself are in `unit_tests/simulation/test_found_groups.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from pybroker.coordinator.groups.group import Group, assignments_of, from_record
from pybroker.coordinator.groups.handover import is_awaited_from
from pybroker.coordinator.groups.member import Member
from pybroker.coordinator.groups.records import decode_group_value, encode_group_value
from pybroker.coordinator.groups.states import GroupState
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from unit_tests.coordinator.runtime.vocabulary import NOW_MS


def keys(numbers: Iterable[int]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("t", number) for number in numbers)


def subscription(owned: Iterable[int], version: int = 3) -> bytes:
    return encode_subscription(Subscription(("t",), owned_partitions=keys(owned)), version)


def group(metadata: Mapping[str, bytes], given: Mapping[str, Iterable[int]]) -> Group:
    """Return a Stable group as the next coordinator loads it."""
    made = Group("g", GroupState.STABLE, generation=3, protocol="cooperative-sticky", leader="one")
    for name, data in metadata.items():
        assignment = encode_assignment(Assignment(keys(given.get(name, ()))))
        protocols = (("cooperative-sticky", data), ("range", subscription([])))
        member = Member(name, name, "c", "/127.0.0.1", 1, 1, protocols, 0.0, assignment)
        made.add(member, "consumer")
    record = made.recorded(assignments_of(made.members.values()), NOW_MS)
    return from_record("g", decode_group_value(encode_group_value(record)), 0.0)


def awaited(found: Group) -> list[str]:
    return [each.member_id for each in found.members.values() if is_awaited_from(found, each)]


@pytest.mark.parametrize(
    ("owned", "given", "expected"),
    [
        pytest.param([0, 1, 2], {"one": [0, 1]}, ["one"], id="it revokes one"),
        pytest.param([0], {}, ["one"], id="it revokes all"),
        pytest.param([0, 1], {"one": [0, 1]}, [], id="it keeps all"),
        pytest.param([0], {"one": [0, 1]}, [], id="it gets more"),
        pytest.param([0, 1], {"one": [0], "two": [1]}, [], id="another has it at once"),
        pytest.param([], {"one": [0]}, [], id="it was new"),
    ],
)
def test_a_member_that_revokes_partitions_has_to_rejoin(
    owned: list[int], given: dict[str, list[int]], expected: list[str]
) -> None:
    assert awaited(group({"one": subscription(owned), "two": subscription([])}, given)) == expected


def test_unreadable_metadata_makes_no_member_rejoin() -> None:
    assert awaited(group({"one": b"", "two": b"\x00\x03\xff\xff"}, {})) == []
    assert awaited(group({"one": subscription([0], version=0)}, {})) == []
    other = group({"one": subscription([0])}, {})
    other.protocol_type = "connect"
    assert awaited(other) == []


def test_an_unreadable_assignment_counts_as_empty() -> None:
    found = group({"one": subscription([0]), "two": subscription([])}, {"two": [0]})
    found.members["two"].assignment = b"?"
    assert awaited(found) == ["one"]
