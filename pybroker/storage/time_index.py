"""The time index of a segment (`.timeindex`): the largest timestamp up to an offset.

Entries of 12 bytes, big-endian: `i64 timestamp, i32 offset - base`. The offset is that of the last
record of the batch with the timestamp. Timestamps rise strictly.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pybroker.ports import Disk
from pybroker.storage.index_table import IndexTable

ENTRY: Final = struct.Struct(">qi")


class TimeEntry(NamedTuple):
    """An entry of the index: a timestamp in ms since 1970, and the last offset of the batch that
    contains this timestamp."""

    timestamp: int
    last_offset: int


class TimeIndex:
    """The time index of one segment. Both timestamp and offset increase from entry to entry."""

    __slots__ = ("_base_offset", "_last_timestamp", "table")

    def __init__(self, path: str, base_offset: int, disk: Disk) -> None:
        self._base_offset = base_offset
        self._last_timestamp: int | None = None
        self.table = IndexTable(path, ENTRY, disk)

    def append(self, timestamp: int, last_offset: int) -> None:
        """Add an entry, unless the index already has a timestamp that is as large or larger."""
        if self._last_timestamp is None:
            last = self.last()
            self._last_timestamp = -1 if last is None else last.timestamp
        if timestamp > self._last_timestamp:
            self.table.append(timestamp, last_offset - self._base_offset)
            self._last_timestamp = timestamp

    def floor(self, timestamp: int, *, cached_only: bool = False) -> TimeEntry | None:
        """Return the last entry whose timestamp is at most `timestamp`; None if there is none. With
        `cached_only` raises NotCached instead of waiting for the disk."""
        number = self.table.floor(timestamp, cached_only=cached_only)
        return self._entry(number, cached_only)

    def last(self, *, cached_only: bool = False) -> TimeEntry | None:
        return self._entry(len(self.table) - 1, cached_only)

    def _entry(self, number: int, cached_only: bool) -> TimeEntry | None:
        if number < 0:
            return None
        timestamp, relative = self.table.get(number, cached_only=cached_only)
        return TimeEntry(timestamp, self._base_offset + relative)

    def truncate(self, offset: int) -> None:
        """Remove the entries whose offset is `offset` or later."""
        number = self.table.floor(offset - 1 - self._base_offset, field=1)
        self.table.truncate(number + 1)
        self._last_timestamp = None

    def clear(self) -> None:
        self.table.clear()
        self._last_timestamp = None

    def is_plausible(self) -> bool:
        """Return whether the file can be this segment's time index: all entries are whole, and the
        first and last entries are plausible."""
        if not self.table.is_whole():
            return False
        last = self.last()
        if last is None:
            return True
        first_ms = last.timestamp if len(self.table) == 1 else self.table.get(0)[0]
        return last.last_offset >= self._base_offset and 0 < first_ms <= last.timestamp
