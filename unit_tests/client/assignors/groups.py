"""Groups for the tests of assignors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import strategies as st

from pybroker.client.assignors import Assignments, GroupMember
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import Subscription

Counts = dict[str, int]
Group = tuple[Counts, list[GroupMember]]
TOPICS = ["t0", "t1", "t2", "t3"]


def member(
    member_id: str,
    topics: Iterable[str],
    *,
    instance_id: str | None = None,
    owned: Iterable[TopicPartition] = (),
    generation: int = -1,
    user_data: bytes | None = None,
) -> GroupMember:
    subscription = Subscription(tuple(topics), user_data, tuple(owned), generation)
    return GroupMember(member_id, instance_id, subscription)


def partitions(text: str) -> list[TopicPartition]:
    """Return the partitions in a text such as `t0:0,1 t1:2`."""
    return [
        TopicPartition(topic, int(number))
        for part in text.split()
        for topic, numbers in [part.split(":")]
        for number in numbers.split(",")
    ]


def owning(
    members: Iterable[GroupMember], assignments: Mapping[str, list[TopicPartition]], generation: int
) -> list[GroupMember]:
    """Return the same members in the next rebalance; those without an assignment are new."""
    return [
        member(
            m.member_id,
            m.subscription.topics,
            instance_id=m.instance_id,
            owned=assignments.get(m.member_id, ()),
            generation=generation if m.member_id in assignments else -1,
        )
        for m in members
    ]


def check_valid(counts: Counts, members: list[GroupMember], found: Assignments) -> None:
    """Check that every partition with a reader has exactly one owner, which reads it."""
    assert found.keys() == {m.member_id for m in members}
    given = [partition for mine in found.values() for partition in mine]
    assert len(given) == len(set(given))
    read = {topic for m in members for topic in m.subscription.topics}
    assert set(given) == {
        TopicPartition(topic, number) for topic in read for number in range(counts.get(topic, 0))
    }
    for m in members:
        assert {partition.topic for partition in found[m.member_id]} <= set(m.subscription.topics)


def is_balanced(members: list[GroupMember], found: Assignments) -> bool:
    """Return whether the assignment is balanced by Kafka's measure: no partition could move to a
    member that reads its topic and has at least two partitions fewer."""
    return all(
        len(found[other.member_id]) >= len(mine) - 1
        for mine in found.values()
        for topic in {partition.topic for partition in mine}
        for other in members
        if topic in other.subscription.topics
    )


def _members(draw: st.DrawFn, same: bool) -> list[GroupMember]:
    subsets = st.lists(st.sampled_from(TOPICS), unique=True)
    shared = draw(subsets)
    return [
        member(
            f"m{index}",
            shared if same else draw(subsets),
            instance_id=draw(st.sampled_from([None, f"i{-index}"])),
        )
        for index in range(draw(st.integers(1, 6)))
    ]


@st.composite
def groups(draw: st.DrawFn, *, same: bool | None = None) -> Group:
    """Generate groups of up to six members, and up to four topics, of which some may not exist."""
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7)))
    return counts, _members(draw, draw(st.booleans()) if same is None else same)
