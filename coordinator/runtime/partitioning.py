"""The partition of an internal topic that a group or a transactional id belongs to, as Kafka's
brokers and tools compute it. The rule must never change, because it locates the stored records."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_NAMES_REMEMBERED: Final = 10_000


def partition_of(name: str, partition_count: int) -> int:
    """Return Java's `abs(name.hashCode()) % partition_count`, where abs drops the sign bit."""
    return _positive_hash(name) % partition_count


@lru_cache(maxsize=_NAMES_REMEMBERED)
def _positive_hash(name: str) -> int:
    """Return Java's String.hashCode, over the UTF-16 units, without the sign bit."""
    units = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8) + low) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
