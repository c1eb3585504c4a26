"""Groups belong to the same partition as in Kafka."""

from __future__ import annotations

import pytest

from pybroker.coordinator.runtime.partitioning import partition_of


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        ("", 0),
        ("g", 103),
        ("ab", 31 * 97 + 98),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", 0),
        ("\U0001d11e", 0xD834 * 31 + 0xDD1E),
    ],
)
def test_the_hashes_are_javas(name: str, hashed: int) -> None:
    """The hash of one name is -2^31, whose sign bit is dropped. Beyond the BMP Java hashes
    surrogates."""
    assert partition_of(name, 2**31) == hashed
    assert partition_of(name, 50) == hashed % 50


def test_half_a_surrogate_pair_has_a_partition() -> None:
    assert partition_of("\ud834", 2**31) == 0xD834
