"""Tests of the sticky assignors: balance, as few moves as possible, and never two owners at
once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData

from pybroker.client.assignors import Assignments, make_assignor
from pybroker.client.assignors.balance import Ownership, balanced, owners
from pybroker.model import TopicPartition
from unit_tests.client.assignors.groups import (
    Group,
    check_valid,
    groups,
    is_balanced,
    member,
    owning,
    partitions,
)

T = {"t0": 6}


def owner_of(found: Assignments) -> dict[TopicPartition, str]:
    return {partition: member_id for member_id, mine in found.items() for partition in mine}


@settings(max_examples=150)
@given(group=groups(), data=st.data())
def test_whatever_is_claimed_the_result_is_valid_and_balanced(
    group: Group, data: st.DataObject
) -> None:
    counts, members = group
    claimable = [TopicPartition(topic, number) for topic in ("t0", "t1") for number in range(9)]
    ownerships = {
        m.member_id: Ownership(
            tuple(data.draw(st.lists(st.sampled_from(claimable)))), data.draw(st.integers(-1, 2))
        )
        for m in members
    }
    found = balanced(counts, members, owners(ownerships))
    check_valid(counts, members, found)
    assert is_balanced(members, found)


@settings(max_examples=80)
@given(group=groups())
def test_a_balanced_assignment_does_not_change(group: Group) -> None:
    counts, members = group
    found = balanced(counts, members, {})
    assert balanced(counts, members, owner_of(found)) == found


@settings(max_examples=80)
@given(group=groups(same=True), leaving=st.integers(0, 5))
def test_no_more_moves_than_needed_when_a_member_leaves(group: Group, leaving: int) -> None:
    counts, members = group
    before = balanced(counts, members, {})
    rest = [m for index, m in enumerate(members) if index != leaving % len(members)]
    after = balanced(counts, rest, owner_of(before))
    for m in rest:
        assert set(before[m.member_id]) <= set(after[m.member_id])


@settings(max_examples=80)
@given(group=groups(same=True))
def test_no_more_moves_than_needed_when_a_member_comes(group: Group) -> None:
    counts, members = group
    before = balanced(counts, members, {})
    after = balanced(
        counts, [*members, member("new", members[0].subscription.topics)], owner_of(before)
    )
    for m in members:
        assert set(after[m.member_id]) <= set(before[m.member_id])


def test_load_flows_through_others_where_topics_differ() -> None:
    """Members a and c read no common topic. So b takes a partition from a and gives another one to
    c."""
    members = [member("a", ["t0"]), member("b", ["t0", "t1"]), member("c", ["t1"])]
    owned = {
        **dict.fromkeys(partitions("t0:0,1,2"), "a"),
        **dict.fromkeys(partitions("t1:0,1"), "b"),
        TopicPartition("t1", 2): "c",
    }
    found = balanced({"t0": 3, "t1": 3}, members, owned)
    assert sorted(map(len, found.values())) == [2, 2, 2]


def test_the_latest_generation_owns_and_two_equal_claims_own_nothing() -> None:
    p0, p1 = partitions("t0:0,1")
    assert owners({"a": Ownership((p0, p1), 3), "b": Ownership((p0,), 4)}) == {p0: "b", p1: "a"}
    assert owners({"a": Ownership((p0, p1), 3), "b": Ownership((p0,), 3)}) == {p1: "a"}


@settings(max_examples=100)
@given(group=groups(), data=st.data())
def test_a_partition_changes_hands_only_after_it_was_given_back(
    group: Group, data: st.DataObject
) -> None:
    """The group rebalances repeatedly: members that lost partitions rejoin, and members come and
    go."""
    counts, everybody = group
    assignor = make_assignor("cooperative-sticky")
    owned: Assignments = {}
    for generation in range(1, 4):
        members = data.draw(st.lists(st.sampled_from(everybody), min_size=1, unique=True))
        # Three in nearly all cases. If subscriptions differ, one in some 20,000 needs a fourth: a
        # partition without an owner does not stick, so one more may move.
        for _ in range(6):
            owned = {m.member_id: owned.get(m.member_id, []) for m in members}
            joined = owning(members, owned, generation)
            found = assignor.assign(counts, joined)
            for member_id, mine in found.items():
                others = {p for other, has in owned.items() if other != member_id for p in has}
                assert not others & set(mine), "given before its owner gave it back"
            settled = found == owned
            owned = found
            if settled:
                break
        assert settled
        check_valid(counts, members, owned)
        assert is_balanced(members, owned)


def test_two_that_claim_the_same_both_give_it_back_first() -> None:
    p0 = partitions("t0:0")
    members = [
        member("a", ["t0"], owned=p0, generation=5),
        member("b", ["t0"], owned=p0, generation=5),
    ]
    assert make_assignor("cooperative-sticky").assign({"t0": 1}, members) == {"a": [], "b": []}


@pytest.mark.parametrize(
    "user_data", [b"", b"\x00", b"\xff" * 9, b"\x7f\xff\xff\xff", b"\x00\x00\x00\x01\x00\x09t"]
)
def test_user_data_that_makes_no_sense_counts_as_none(user_data: bytes) -> None:
    members = [member("a", ["t0"], user_data=user_data), member("b", ["t0"])]
    for name in ("sticky", "cooperative-sticky"):
        found = make_assignor(name).assign(T, members)
        assert is_balanced(members, found)


def test_sticky_members_send_their_partitions_in_kafkas_form() -> None:
    assignor = make_assignor("sticky")
    assert assignor.user_data() is None
    assignor.assigned(partitions("t0:4,5 t1:0"), 7)
    data = assignor.user_data()
    assert data is not None
    theirs = StickyAssignorUserData.decode(data, version=1, header=False)
    assert theirs.generation == 7
    had = [(row.topic, list(row.partitions)) for row in theirs.previous_assignment]
    assert had == [("t0", [4, 5]), ("t1", [0])]
    found = make_assignor("sticky").assign(
        {"t0": 6, "t1": 2}, [member("b", ["t0", "t1"]), member("z", ["t0", "t1"], user_data=data)]
    )
    assert set(partitions("t0:4,5 t1:0")) <= set(found["z"])


def test_the_generation_counts_where_the_user_data_has_it() -> None:
    """An older client's subscription has no generation, so the user data has it."""
    p0 = partitions("t0:0")
    members = [
        member("a", ["t0"], owned=p0, user_data=b"\x00\x00\x00\x06"),
        member("b", ["t0"], owned=p0, generation=5),
    ]
    assert make_assignor("cooperative-sticky").assign({"t0": 1}, members) == {"a": p0, "b": []}
