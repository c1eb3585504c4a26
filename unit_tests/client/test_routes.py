"""Tests of routes: a record with a key goes to the same partition as with the Java
client."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.accumulator import Accumulator
from pybroker.client.metadata import PartitionInfo, TopicInfo
from pybroker.client.routes import Route
from pybroker.errors import ErrorCode
from pybroker.model import NO_LEADER, NO_TOPIC_ID, TopicPartition
from pybroker.records.record_buffer import partition_of_key


@given(st.binary(max_size=20), st.integers(1, 500))
def test_a_key_goes_to_a_partition_that_exists(key: bytes, count: int) -> None:
    assert 0 <= partition_of_key(key, count) < count


class Stage:
    """A route of the topic "t" with four partitions, of which some have a leader."""

    def __init__(self, sticky_bytes: int, *available: int) -> None:
        self.accumulator = Accumulator(
            batch_size=10_000, linger_s=0, idempotent=True, in_flight_max=5
        )
        self.route = Route(
            topic(*available), random.Random(1), sticky_bytes, self.accumulator.queue
        )

    def update(self, *available: int) -> None:
        self.route.update(topic(*available))

    def send(self, key: bytes | None = None) -> int:
        """Append a record of 50 bytes, and return its partition."""
        queue = self.route.choose(key, 50)
        size = self.accumulator.append(queue, 0, key, b"v" * 43, (), 0.0).size
        assert size == 50 + len(key or b"")
        return queue.topic_partition.partition


def topic(*available: int) -> TopicInfo:
    partitions = {number: partition(number, number in available) for number in range(4)}
    return TopicInfo("t", ErrorCode.NONE, NO_TOPIC_ID, False, partitions)


def partition(number: int, has_leader: bool) -> PartitionInfo:
    leader = 1 if has_leader else NO_LEADER
    place = TopicPartition("t", number)
    return PartitionInfo(place, ErrorCode.NONE, leader, 0, (1,), (1,), ())


def test_records_without_a_key_stay_until_a_batch_is_full() -> None:
    stage = Stage(100, 0, 1, 2, 3)
    chosen = [stage.send() for _ in range(40)]
    pairs = [chosen[index : index + 2] for index in range(0, 40, 2)]
    assert all(first == second for first, second in pairs)
    assert all(one != other for one, other in itertools.pairwise(pairs))
    assert {first for first, _ in pairs} == {0, 1, 2, 3}


def test_records_that_join_a_batch_directly_count_for_the_next_choice() -> None:
    stage = Stage(200, 0, 1, 2, 3)
    first = stage.send()
    batch = stage.accumulator.queue(TopicPartition("t", first)).last
    assert batch is not None
    batch.records.append(0, None, b"v" * 150, (), 10_000)
    batch.update_memory()
    assert stage.send() != first


def test_records_without_a_key_avoid_partitions_without_a_leader() -> None:
    stage = Stage(1_000, 2)
    assert stage.send() == 2
    stage.update(0)
    assert stage.send() == 0
    stage.update()
    assert stage.send() in range(4)


def test_new_metadata_keeps_the_partition_of_records_without_a_key() -> None:
    stage = Stage(10_000, 0, 1, 2, 3)
    first = stage.send()
    for _ in range(10):
        stage.update(0, 1, 2, 3)
        assert stage.send() == first


def test_a_key_stays_where_it_is_when_its_leader_is_gone() -> None:
    stage = Stage(1, 0, 1, 2, 3)
    places = set()
    for available in ([0, 1, 2, 3], [0], []):
        stage.update(*available)
        places.add(stage.send(b"k"))
    assert places == {partition_of_key(b"k", 4)}
