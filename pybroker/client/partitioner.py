"""The partitioner: it selects the partition of a record by its key, as the Java client does.
Records without a key stay with one partition for a while.

This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pybroker.ports import Rng

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data` with the seed of Kafka's clients, unsigned."""
    whole = len(data) & ~3
    state = (_SEED ^ len(data)) & _MASK
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    rest = data[whole:]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Return the number of the partition to which Kafka's Java client, too, sends records with this
    key."""
    return (murmur2(key) & _POSITIVE) % partition_count


class Partitioner:
    """A partitioner for records without an explicit partition.

    Records without a key go to one partition until it has received about `sticky_bytes`, then to
    another partition, so that batches are full and partitions get equal shares (KIP-480, KIP-794).
    """

    def __init__(self, rng: Rng, sticky_bytes: int) -> None:
        self._rng = rng
        self._sticky_bytes = sticky_bytes
        self._current: dict[str, tuple[int, int]] = {}

    def choose(
        self,
        topic: str,
        key: bytes | None,
        size: int,
        *,
        partition_count: int,
        available: Sequence[int],
    ) -> int:
        """Return the number of the partition for a record of about `size` bytes. `available` has
        the partitions with a leader, which a record without a key needs. A record with a key may go
        to any partition, because the partition of a key must not depend on failures."""
        if key is not None:
            return partition_of_key(key, partition_count)
        candidates = available or range(partition_count)
        partition, used = self._current.get(topic, (-1, 0))
        if partition not in candidates or used >= self._sticky_bytes:
            partition, used = self._next(candidates, partition), 0
        self._current[topic] = (partition, used + size)
        return partition

    def _next(self, candidates: Sequence[int], current: int) -> int:
        others = [partition for partition in candidates if partition != current]
        if not others:
            return candidates[0]
        return others[self._rng.randrange(len(others))]
