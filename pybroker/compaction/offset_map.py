"""The offset map of the log cleaner: the last offset of each key in the dirty part of a log."""

from __future__ import annotations

import hashlib
from typing import Final

ENTRY_BYTES: Final = 160
"""The memory of one key in bytes: a dictionary's entry, a digest and an offset. Measured with
CPython 3.11 and a dictionary that is two thirds full, and rounded up."""
_DIGEST_BYTES: Final = 16


class OffsetMap:
    """Key -> the offset of its last record. The map stores a digest of 16 bytes for each key, as
    Kafka stores an MD5 digest, so long keys take no more memory than short ones. `end` is the
    offset after the last batch whose keys are in the map."""

    def __init__(self, memory_bytes: int, first_offset: int) -> None:
        """`memory_bytes` limits the memory of the map. The dirty part begins at `first_offset`."""
        self._capacity = max(memory_bytes // ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}
        self.end = first_offset

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, keys: int) -> bool:
        """Return whether the map has room for this number of further keys."""
        return len(self._offsets) + keys <= self._capacity

    def put(self, key: bytes, offset: int) -> None:
        """Store the offset of a record with this key. The caller passes the records in the order of
        their offsets."""
        self._offsets[_digest(key)] = offset

    def is_last(self, key: bytes, offset: int) -> bool:
        """Return whether the map has no record with this key after `offset`."""
        return offset >= self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
