"""Tests of the partitioner: a record with a key goes to the same partition as with the Java
client."""

from __future__ import annotations

import itertools
import random

import kafka.partitioner.default as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.client.partitioner import Partitioner, murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [  # the vectors of the Java client's own test of its hash
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_known_keys(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@settings(max_examples=300)
@given(st.binary(max_size=64))
def test_murmur2_is_that_of_another_client(key: bytes) -> None:
    assert murmur2(key) == oracle.murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 500))
def test_a_key_goes_to_a_partition_that_exists(key: bytes, count: int) -> None:
    assert 0 <= partition_of_key(key, count) < count


def choose(partitioner: Partitioner, size: int, available: list[int]) -> int:
    return partitioner.choose("t", None, size, partition_count=4, available=available)


def test_records_without_a_key_stay_until_a_batch_is_full() -> None:
    partitioner = Partitioner(random.Random(1), sticky_bytes=100)
    chosen = [choose(partitioner, 50, [0, 1, 2, 3]) for _ in range(40)]
    pairs = [chosen[index : index + 2] for index in range(0, 40, 2)]
    assert all(first == second for first, second in pairs)
    assert all(one != other for one, other in itertools.pairwise(pairs))
    assert {first for first, _ in pairs} == {0, 1, 2, 3}


def test_records_without_a_key_avoid_partitions_without_a_leader() -> None:
    partitioner = Partitioner(random.Random(1), sticky_bytes=1_000)
    first = choose(partitioner, 1, [2])
    assert first == 2
    assert choose(partitioner, 1, [0]) == 0
    assert choose(partitioner, 1, []) in range(4)


def test_a_key_stays_where_it_is_when_its_leader_is_gone() -> None:
    partitioner = Partitioner(random.Random(1), sticky_bytes=1)
    places = {
        partitioner.choose("t", b"k", 1, partition_count=4, available=available)
        for available in ([0, 1, 2, 3], [0], [])
    }
    assert places == {partition_of_key(b"k", 4)}
