"""A file of fixed-size entries, sorted by their first field: an offset index or a time index. New
entries are collected in memory first, so a crash may lose them."""

from __future__ import annotations

import struct
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer, Disk, File
from pybroker.storage.reading import fetch

TAIL_BYTES: Final = 4096
"""The number of bytes that are collected in memory before they are written to the file."""
_BLOCK_BYTES: Final = 4096
"""A binary search reads its remaining range at once when the range has at most this many bytes."""


class IndexTable:
    """A sorted table in a file. Methods with `cached_only` raise NotCached if they would wait for
    the disk. Invariant: keys never fall."""

    __slots__ = ("_changes", "_disk", "_entry", "_file", "_state", "_synced", "path")

    def __init__(self, path: str, entry: struct.Struct, disk: Disk) -> None:
        self.path = path
        self._entry = entry
        self._disk = disk
        self._file: File | None = None
        # (entries in the file, bytes after them); one tuple, so that a reader in another thread
        # never sees an entry twice or not at all. -1: the file has not been read yet.
        self._state: tuple[int, bytearray] = (-1, bytearray())
        # The number of changes of the file, and how many of them are durable; -1 if an earlier
        # process may have left changes that are not durable. A change is counted after it is made,
        # so that a sync in another thread counts only changes that it covers.
        self._changes = 0
        self._synced = -1

    def trust(self) -> None:
        """Treat the content of the file as durable, because the broker closed it cleanly."""
        self._synced = self._changes

    def _loaded(self) -> tuple[int, bytearray]:
        state = self._state
        if state[0] < 0:
            size = 0
            if self._disk.exists(self.path):
                size = self._disk.size(self.path)
            else:
                self.trust()
            state = self._note_size(size)
        return state

    def _note_size(self, size: int) -> tuple[int, bytearray]:
        """Derive the number of entries in the file from its `size` (bytes), unless the number is
        known. Return this number, and the bytes of the entries that are only in memory."""
        if self._state[0] < 0:
            self._state = (size // self._entry.size, self._state[1])
        return self._state

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        return self._file

    def is_whole(self) -> bool:
        """Return whether the file exists and contains no partial entry."""
        if not self._disk.exists(self.path):
            return False
        size = self._disk.size(self.path)
        self._note_size(size)
        return size % self._entry.size == 0

    def __len__(self) -> int:
        written, tail = self._loaded()
        return written + len(tail) // self._entry.size

    @property
    def size_bytes(self) -> int:
        return len(self) * self._entry.size

    def append(self, *fields: int) -> None:
        """Add an entry with these fields, in memory. `spill` writes it to the file."""
        _, tail = self._loaded()
        tail += self._entry.pack(*fields)

    @property
    def tail_is_full(self) -> bool:
        """Whether the entries in memory fill at least TAIL_BYTES. The caller then calls `spill`."""
        return len(self._state[1]) >= TAIL_BYTES

    def spill(self) -> None:
        """Append the entries that the file does not have yet. Create the file if necessary."""
        written, tail = self._loaded()
        if tail:
            self._opened().append(bytes(tail))
            self._changes += 1
            self._state = (written + len(tail) // self._entry.size, bytearray())
        elif self._file is None and not self._disk.exists(self.path):
            self._opened()

    def get(self, number: int, *, cached_only: bool = False) -> tuple[int, ...]:
        """Return the fields of entry `number`, counted from 0."""
        written, tail = self._loaded()
        size = self._entry.size
        if number >= written:
            return self._entry.unpack_from(tail, (number - written) * size)
        return self._entry.unpack(self._read(number, 1, cached_only))

    def _read(self, number: int, count: int, cached_only: bool) -> Buffer:
        """Return the bytes of `count` entries in the file, from entry `number` on. Raises
        StorageError. Raises CorruptionError if the file was removed or truncated since it was
        loaded."""
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path)
        size = self._entry.size
        data = fetch(file, number * size, count * size, cached_only=cached_only)
        if len(data) < count * size:
            raise CorruptionError(f"{self.path}: the file has fewer than {number + count} entries")
        return data

    def last(self, *, cached_only: bool = False) -> tuple[int, ...] | None:
        count = len(self)
        return self.get(count - 1, cached_only=cached_only) if count else None

    def floor(self, key: int, *, field: int = 0, cached_only: bool = False) -> int:
        """Return the number (from 0) of the last entry whose `field` is at most `key`; -1 if there
        is none. The entries must be sorted by `field`."""
        written, tail = self._loaded()
        size = self._entry.size
        unpack = self._entry.unpack_from
        if tail and unpack(tail, 0)[field] <= key:
            found = self._search(tail, len(tail) // size, key, field)
            return written + found
        low, high = 0, written
        while (high - low) * size > _BLOCK_BYTES:
            middle = (low + high) // 2
            data = self._read(middle, 1, cached_only)
            if unpack(data)[field] <= key:
                low = middle
            else:
                high = middle
        if high == low:
            return -1
        block = self._read(low, high - low, cached_only)
        return low + self._search(block, len(block) // size, key, field)

    def _search(self, block: Buffer, count: int, key: int, field: int) -> int:
        """Return the number (counted from 0) of the last entry in `block` whose field `field` is at
        most `key`; -1 if there is none. `block` has `count` entries."""
        unpack = self._entry.unpack_from
        size = self._entry.size
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if unpack(block, middle * size)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def truncate(self, count: int) -> None:
        """Remove all entries but the first `count` ones."""
        written, tail = self._loaded()
        if count >= written:
            self._state = (written, tail[: (count - written) * self._entry.size])
            return
        self._opened().truncate(count * self._entry.size)
        self._changes += 1
        self._state = (count, bytearray())

    def clear(self) -> None:
        """Remove all entries, and a partial one at the end of the file."""
        if self._file is not None or self._disk.exists(self.path):
            self._opened().truncate(0)
            self._changes += 1
        self._state = (0, bytearray())

    def sync(self) -> None:
        """Make the entries in the file durable. Entries that are only in memory are not written."""
        changes = self._changes
        if self._synced != changes:
            self._opened().sync()
            self._synced = changes

    def close(self) -> None:
        """Close the file. Entries that are only in memory are not written."""
        if self._file is not None:
            self._file.close()
            self._file = None
