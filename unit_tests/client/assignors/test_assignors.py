"""Tests of the rules of all assignors, and known assignments of range and roundrobin."""

from __future__ import annotations

from typing import Any

import kafka.coordinator.assignors.range
import kafka.coordinator.assignors.roundrobin
import pytest
from hypothesis import given, settings
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from pybroker.client.assignors import ASSIGNOR_NAMES, GroupMember, assignor_name, make_assignor
from pybroker.model import TopicPartition
from unit_tests.client.assignors.groups import (
    Counts,
    Group,
    check_valid,
    groups,
    member,
    partitions,
)


@pytest.mark.parametrize("name", ASSIGNOR_NAMES)
@settings(max_examples=60)
@given(group=groups())
def test_every_partition_goes_to_one_member_that_reads_it(name: str, group: Group) -> None:
    counts, members = group
    found = make_assignor(name).assign(counts, members)
    check_valid(counts, members, found)
    assert make_assignor(name).assign(counts, members[::-1]) == found, "the order of joining counts"


def test_range_cuts_each_topic_for_itself() -> None:
    members = [member("b", ["t0", "t1"]), member("a", ["t0", "t1"])]
    assert make_assignor("range").assign({"t0": 3, "t1": 3}, members) == {
        "a": partitions("t0:0,1 t1:0,1"),
        "b": partitions("t0:2 t1:2"),
    }


def test_static_members_keep_their_place_with_other_member_ids() -> None:
    def spread(ids: list[str]) -> list[list[TopicPartition]]:
        members = [
            member(ids[0], ["t0"], instance_id="1"),
            member(ids[1], ["t0"], instance_id="2"),
            member("a", ["t0"]),
        ]
        found = make_assignor("range").assign({"t0": 4}, members)
        return [found[m.member_id] for m in members]

    assert spread(["x", "y"]) == [partitions("t0:0,1"), partitions("t0:2"), partitions("t0:3")]
    assert spread(["y", "x"]) == spread(["x", "y"])


def test_roundrobin_deals_over_all_topics() -> None:
    members = [member("a", ["t0", "t1"]), member("b", ["t0", "t1"])]
    assert make_assignor("roundrobin").assign({"t0": 3, "t1": 3}, members) == {
        "a": partitions("t0:0,2 t1:1"),
        "b": partitions("t0:1 t1:0,2"),
    }


class KafkaPythonCluster:
    """The part of a cluster that kafka-python's assignors use."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None


class KafkaPythonMember:
    """A member in the form that kafka-python's assignors take."""

    def __init__(self, m: GroupMember) -> None:
        self.member_id = m.member_id
        self.group_instance_id = m.instance_id
        self.metadata = ConsumerProtocolSubscription(
            version=1, topics=sorted(m.subscription.topics), user_data=b"", owned_partitions=[]
        )


def check_oracle(name: str, oracle: Any, group: Group) -> None:
    """Compare the assignment with kafka-python's. Groups with static members are skipped, because
    kafka-python groups them only if they are adjacent."""
    counts, members = group
    members = [member(m.member_id, m.subscription.topics) for m in members]
    found = oracle.assign(KafkaPythonCluster(counts), [KafkaPythonMember(m) for m in members])
    assert make_assignor(name).assign(counts, members) == {
        member_id: [
            TopicPartition(topic, number)
            for topic, numbers in sorted(theirs.assigned_partitions)
            for number in numbers
        ]
        for member_id, theirs in found.items()
    }


@settings(max_examples=60)
@given(group=groups())
def test_range_assigns_as_in_kafka_python(group: Group) -> None:
    check_oracle("range", kafka.coordinator.assignors.range.RangePartitionAssignor, group)


@settings(max_examples=60)
@given(group=groups(same=True))
def test_roundrobin_assigns_as_in_kafka_python(group: Group) -> None:
    """All members read the same topics here: kafka-python fails if it has to skip a member."""
    oracle = kafka.coordinator.assignors.roundrobin.RoundRobinPartitionAssignor
    check_oracle("roundrobin", oracle, group)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("range", "range"),
        (" cooperative-sticky ", "cooperative-sticky"),
        ("org.apache.kafka.clients.consumer.StickyAssignor", "sticky"),
        ("RoundRobinAssignor", "roundrobin"),
    ],
)
def test_assignors_are_known_by_both_names(text: str, name: str) -> None:
    assert assignor_name(text) == make_assignor(text).name == name


def test_an_unknown_assignor_is_answered_with_the_known() -> None:
    with pytest.raises(
        ValueError, match="must be one of range, roundrobin, sticky, cooperative-sti"
    ):
        make_assignor("uniform")
