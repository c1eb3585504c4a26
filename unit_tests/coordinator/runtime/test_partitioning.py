"""Tests that groups belong to the same partition as in Kafka."""

from __future__ import annotations

import random

import pytest

from pybroker.coordinator.runtime import partitioning
from pybroker.coordinator.runtime.partitioning import partition_of


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        ("", 0),
        ("g", 103),
        ("ab", 31 * 97 + 98),
        ("Aa", 2112),
        ("BB", 2112),
        ("idle-2", 1_193_238_407),
        ("open-0", 1_010_581_139),
        ("polygenelubricants", 0),
        ("\U0001d11e", 0xD834 * 31 + 0xDD1E),
    ],
)
def test_the_hashes_are_javas(name: str, hashed: int) -> None:
    """The hashes of two names are negative, and that of another one is -2^31. Beyond the BMP Java
    hashes surrogates."""
    assert partition_of(name, 2**31) == hashed
    assert partition_of(name, 50) == hashed % 50


def test_half_a_surrogate_pair_has_a_partition() -> None:
    assert partition_of("\ud834", 2**31) == 0xD834


def plain_hash(name: str) -> int:
    """Compute the absolute value of Java's String.hashCode unit by unit; 0 for -2^31."""
    data = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[position : position + 2], "big")) % 2**32
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == -(2**31) else abs(signed)


@pytest.mark.parametrize("length", [0, 1, 2, 255, 256, 257, 511, 512, 513, 32_767])
def test_names_of_any_length_have_javas_hash(length: int) -> None:
    rng = random.Random(length)
    name = "".join(rng.choice("aZ-ß\u20ac\U0001d11e\ud800") for _ in range(length))
    assert partition_of(name, 2**31) == plain_hash(name)


def test_hashes_of_long_names_are_not_remembered() -> None:
    before = partitioning._remembered_hash.cache_info().currsize
    for number in range(20):
        partition_of(f"{number}".ljust(32_000, "x"), 50)
    assert partitioning._remembered_hash.cache_info().currsize == before
