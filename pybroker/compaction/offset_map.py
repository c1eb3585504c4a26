"""The last offset of each key in the part of a log that is cleaned next."""

from __future__ import annotations

import hashlib
from typing import Final

ENTRY_BYTES: Final = 160
"""The memory that one key takes, in bytes: an entry of a dictionary that is two thirds full, a
digest and an offset, measured with CPython 3.11 and rounded up."""
_DIGEST_BYTES: Final = 16


class OffsetMap:
    """Key -> the offset of its last record. Keys are stored as digests of 16 bytes, like Kafka's
    MD5, so a key of a megabyte takes no more memory than a short one. `end` is the offset behind
    the last batch whose records are in the map."""

    def __init__(self, memory_bytes: int, first_offset: int) -> None:
        """`memory_bytes` limits the memory of the map. `first_offset` is the begin of the part."""
        self._capacity = max(memory_bytes // ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}
        self.end = first_offset

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, keys: int) -> bool:
        """Return whether so many more keys fit."""
        return len(self._offsets) + keys <= self._capacity

    def put(self, key: bytes, offset: int) -> None:
        """Note a record. The caller puts records in the order of their offsets."""
        self._offsets[_digest(key)] = offset

    def is_last(self, key: bytes, offset: int) -> bool:
        """Return whether the map has no later record of the key."""
        return offset >= self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
