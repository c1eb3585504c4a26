"""Tests of a broker's view of the cluster after each UpdateMetadata of the controller."""

from __future__ import annotations

import uuid

from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import (
    LEADER_DURING_DELETION,
    Broker,
    Extent,
    PartitionFacts,
    PartitionState,
    TopicPartition,
    UpdateMetadata,
)

BROKERS = (Broker(1, ()), Broker(2, ()))
IDS = {"a": uuid.UUID(int=1), "b": uuid.UUID(int=2)}


def facts(topic: str, partition: int, leader: int = 1) -> PartitionFacts:
    state = PartitionState(leader, 3, (1,), 5)
    return PartitionFacts(TopicPartition(topic, partition), IDS[topic], state, 0, (1,))


def known(view: MetadataView) -> list[str]:
    return sorted(
        f"{name}-{number}" for name in view.topics for number in view.topics[name].partitions
    )


def test_an_update_adds_to_the_known_topics() -> None:
    view = MetadataView()
    view.apply(UpdateMetadata(1, 5, 7, (facts("a", 0), facts("b", 0)), BROKERS))
    view.apply(UpdateMetadata(1, 5, 7, (facts("a", 1),), BROKERS[:1]))
    assert known(view) == ["a-0", "a-1", "b-0"]
    assert list(view.brokers) == [1]
    gone = facts("b", 0, LEADER_DURING_DELETION)
    view.apply(UpdateMetadata(1, 5, 7, (gone,), BROKERS))
    assert known(view) == ["a-0", "a-1"]
    assert view.name_of(IDS["b"]) is None


def test_a_full_update_removes_partitions_that_it_does_not_name() -> None:
    view = MetadataView()
    view.apply(UpdateMetadata(1, 5, 7, (facts("a", 0), facts("a", 1), facts("b", 0)), BROKERS))
    view.apply(UpdateMetadata(1, 6, 7, (facts("a", 1),), BROKERS, Extent.ALL))
    assert known(view) == ["a-1"]
    assert view.name_of(IDS["b"]) is None
    assert view.name_of(IDS["a"]) == "a"


def test_a_full_update_may_arrive_in_several_commands() -> None:
    view = MetadataView()
    view.apply(UpdateMetadata(1, 5, 7, (facts("a", 0), facts("a", 1), facts("b", 0)), BROKERS))
    view.apply(UpdateMetadata(1, 6, 7, (facts("a", 1),), BROKERS, Extent.BEGINS))
    view.apply(UpdateMetadata(1, 6, 7, (), BROKERS))
    view.apply(UpdateMetadata(1, 6, 7, (), BROKERS, Extent.GOES_ON))
    assert known(view) == ["a-0", "a-1", "b-0"]
    view.apply(UpdateMetadata(1, 6, 7, (facts("b", 0),), BROKERS, Extent.ENDS))
    assert known(view) == ["a-1", "b-0"]


def test_a_full_update_without_its_first_command_removes_nothing() -> None:
    view = MetadataView()
    view.apply(UpdateMetadata(1, 5, 7, (facts("a", 0), facts("b", 0)), BROKERS))
    view.apply(UpdateMetadata(1, 6, 7, (facts("b", 0),), BROKERS, Extent.ENDS))
    assert known(view) == ["a-0", "b-0"]
