"""Computes the partition of a group or a transactional id, as Kafka does. The rule must never
change, because it locates the stored records."""

from __future__ import annotations

import operator
import struct
from functools import lru_cache
from typing import Final

_NAMES_REMEMBERED: Final = 10_000
_LENGTH_REMEMBERED: Final = 300
"""The longest name whose hash is remembered. Any client can send names of 32 KiB, so longer names
would fill the memory."""
_UNITS: Final = 256
"""The number of UTF-16 units that are hashed in one step."""
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_UNITS, -1, -1))
"""31 to the power of _UNITS, ..., 1, 0, modulo 2 to the power of 32."""


def partition_of(name: str, partition_count: int) -> int:
    """Return Java's `abs(name.hashCode()) % partition_count`, with 0 for the hash -2^31, as in
    Kafka."""
    is_short = len(name) <= _LENGTH_REMEMBERED
    return (_remembered_hash(name) if is_short else _absolute_hash(name)) % partition_count


@lru_cache(maxsize=_NAMES_REMEMBERED)
def _remembered_hash(name: str) -> int:
    return _absolute_hash(name)


def _absolute_hash(name: str) -> int:
    """Return the absolute value of Java's String.hashCode; 0 for -2^31."""
    data = name.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(data) // 2}H", data)
    value = 0
    for start in range(0, len(units), _UNITS):
        step = units[start : start + _UNITS]
        shift, *powers = _POWERS[-len(step) - 1 :]
        value = (value * shift + sum(map(operator.mul, step, powers))) & 0xFFFFFFFF
    return min(value, (1 << 32) - value) & 0x7FFFFFFF
