"""The offset index of a segment (`.index`): positions of batches in the segment's file.

An entry has 8 bytes, big-endian `i32 offset - base, i32 position`: the offset of a batch's LAST
record, and the start of the batch. Some batches have no entry.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pybroker.ports import Disk
from pybroker.storage.index_table import IndexTable

ENTRY: Final = struct.Struct(">ii")


class OffsetEntry(NamedTuple):
    """An entry of the index: the batch that ends with `last_offset` begins at `position`."""

    last_offset: int
    position: int


class OffsetIndex:
    """The offset index of one segment. Its entries are sorted by offset, and by position.
    Invariant: each position is below the size of the segment."""

    __slots__ = ("_base_offset", "table")

    def __init__(self, path: str, base_offset: int, disk: Disk) -> None:
        self._base_offset = base_offset
        self.table = IndexTable(path, ENTRY, disk)

    def append(self, last_offset: int, position: int) -> None:
        self.table.append(last_offset - self._base_offset, position)

    def floor(self, offset: int, *, cached_only: bool = False) -> OffsetEntry | None:
        """Return the entry of the last indexed batch that ends at or before `offset`; None if there
        is none. With `cached_only` raises NotCached instead of waiting for the disk."""
        return self._entry(
            self.table.floor(offset - self._base_offset, cached_only=cached_only), cached_only
        )

    def floor_position(self, position: int, *, cached_only: bool = False) -> OffsetEntry | None:
        """Return the entry of the last indexed batch that begins at or before `position`; None if
        there is none. With `cached_only` raises NotCached instead of waiting for the disk."""
        return self._entry(
            self.table.floor(position, field=1, cached_only=cached_only), cached_only
        )

    def last(self) -> OffsetEntry | None:
        return self._entry(len(self.table) - 1, False)

    def _entry(self, number: int, cached_only: bool) -> OffsetEntry | None:
        if number < 0:
            return None
        relative, position = self.table.get(number, cached_only=cached_only)
        return OffsetEntry(self._base_offset + relative, position)

    def truncate(self, offset: int) -> None:
        """Remove the entries of the batches that end at or after `offset`."""
        self.table.truncate(self.table.floor(offset - 1 - self._base_offset) + 1)

    def is_plausible(self, log_size: int) -> bool:
        """Return whether the file can be the index of a segment of `log_size` bytes: it has whole
        entries, and the last one points between the first batch and the segment's end."""
        if not self.table.is_whole():
            return False
        last = self.last()
        return last is None or (
            last.last_offset > self._base_offset and 0 < last.position < log_size
        )
