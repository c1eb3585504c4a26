"""The time index of a segment (`.timeindex`): how large timestamps are up to an offset.

File: entries of 12 bytes, big-endian `i64 timestamp, i32 offset - base`: no record up to that
offset has a larger timestamp. Timestamps rise strictly. The offset is that of the last record of
the batch in which the timestamp is the largest.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pybroker.ports import Disk
from pybroker.storage.index_table import IndexTable

ENTRY: Final = struct.Struct(">qi")


class TimeEntry(NamedTuple):
    """Timestamp in ms since 1970, and the last offset of the batch that holds it."""

    timestamp: int
    last_offset: int


class TimeIndex:
    """Entries are sorted by both fields."""

    __slots__ = ("_base_offset", "_last_timestamp", "table")

    def __init__(self, path: str, base_offset: int, disk: Disk) -> None:
        self._base_offset = base_offset
        self._last_timestamp: int | None = None
        self.table = IndexTable(path, ENTRY, disk)

    def append(self, timestamp: int, last_offset: int) -> None:
        """Add an entry if the timestamp is larger than all before; other timestamps need no
        entry."""
        if self._last_timestamp is None:
            last = self.last()
            self._last_timestamp = -1 if last is None else last.timestamp
        if timestamp > self._last_timestamp:
            self.table.append(timestamp, last_offset - self._base_offset)
            self._last_timestamp = timestamp

    def floor(self, timestamp: int, *, cached_only: bool = False) -> TimeEntry | None:
        """The last entry whose timestamp is at most `timestamp`."""
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
        """Forget entries of `offset` and later."""
        number = self.table.floor(offset - 1 - self._base_offset, field=1)
        self.table.truncate(number + 1)
        self._last_timestamp = None

    def clear(self) -> None:
        self.table.clear()
        self._last_timestamp = None

    def is_plausible(self) -> bool:
        """Whether the file consists of whole entries, the last of which lies in the segment and is
        the largest. So the zeros that Apache Kafka leaves behind a crash are refused."""
        if not self.table.is_whole():
            return False
        first = self._entry(min(0, len(self.table) - 1), False)
        last = self.last()
        if first is None or last is None:
            return True
        return last.last_offset >= self._base_offset and 0 < first.timestamp <= last.timestamp
