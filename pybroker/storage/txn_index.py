"""The index of the aborted transactions of a segment (`.txnindex`). Without aborted transactions,
the file is missing.

Entries of 34 bytes, in the order of the abort markers, big-endian: `i16 version 0, i64 producer id,
i64 first offset, i64 last offset (of the abort marker), i64 last stable offset`.
"""

from __future__ import annotations

import bisect
import logging
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError, StorageError
from pybroker.ports import Disk, File
from pybroker.storage.reading import fetch

log = logging.getLogger(__name__)

ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0
_ENTRIES_A_READ: Final = 128


class AbortedTransaction(NamedTuple):
    """An aborted transaction: the records of `producer_id` from `first_offset` to the abort marker
    at `last_offset`. `last_stable_offset` is the partition's last stable offset after the marker
    was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode(data: bytes, path: str) -> list[AbortedTransaction]:
    """Return the entries in the content `data` of the transaction index at `path`. Raises
    CorruptionError if `data` is damaged."""
    if len(data) % ENTRY.size:
        raise CorruptionError(
            f"{path}: expected a multiple of {ENTRY.size} bytes, the file has {len(data)}"
        )
    return [_decoded(fields, path) for fields in ENTRY.iter_unpack(data)]


def _decoded(fields: tuple[int, ...], path: str) -> AbortedTransaction:
    version, *values = fields
    if version != _VERSION:
        raise CorruptionError(f"{path}: an entry has version {version}, expected {_VERSION}")
    return AbortedTransaction(*values)


class TxnIndex:
    """The transaction index of one segment. One thread changes the index; other threads may call
    `overlapping` at the same time."""

    __slots__ = (
        "_disk",
        "_file",
        "_is_unsynced",
        "_last_offset",
        "_lock",
        "is_in_doubt",
        "is_missing",
        "path",
    )

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._file: File | None = None
        self.is_missing = False
        """Whether the file is known not to exist."""
        self._is_unsynced = False
        self._last_offset: int | None = None
        """The offset of the abort marker of the last entry; -1 if the index is empty, None if it
        was not read yet."""
        self.is_in_doubt = False
        """Whether entries may be wrong or missing. They are then compared with the markers in the
        segment."""
        # A reader in another thread must not find the file missing while it is being created.
        self._lock = threading.Lock()

    def append(self, entry: AbortedTransaction) -> None:
        with self._lock:
            self.is_missing, self._is_unsynced = False, True
            if self._file is None:
                self._file = self._disk.open(self.path, create=True)
            self._file.append(ENTRY.pack(_VERSION, *entry))
            self._last_offset = entry.last_offset

    def add(self, entry: AbortedTransaction) -> None:
        """Append the entry of an abort marker, unless the index has the entry already. The caller
        adds the entries in the order of their markers."""
        if self._last_offset is None:
            entries = self.entries()
            self._last_offset = entries[-1].last_offset if entries else -1
        if entry.last_offset > self._last_offset:
            self.append(entry)

    def doubt(self) -> None:
        """Mark the entries as possibly corrupt, because no checksum covers them. `confirm` removes
        the mark."""
        self.is_in_doubt = self._disk.exists(self.path)

    def confirm(self, expected: Sequence[AbortedTransaction]) -> None:
        """Set `is_in_doubt` to False. Rewrite the index if its entries differ from `expected`, the
        aborted transactions according to the markers in the segment."""
        self.is_in_doubt = False
        if self.entries() != [*expected]:
            log.warning("transaction index rewritten path=%s entries=%d", self.path, len(expected))
            self._keep(expected)

    def entries(self) -> list[AbortedTransaction]:
        """Return all entries, in the order of the markers. Raises CorruptionError if the file is
        damaged."""
        if self.is_missing:
            return []
        with self._lock:
            try:
                return decode(self._disk.read(self.path), self.path)
            except FileNotFoundError:
                self.is_missing = True
                return []

    def overlapping(
        self, from_offset: int, *, cached_only: bool = False
    ) -> Iterator[AbortedTransaction]:
        """Yield the entries whose marker is at `from_offset` or later, in the order of the markers.
        Raises CorruptionError. With `cached_only`, raises NotCached if a read would wait for the
        disk."""
        file = self._opened()
        if file is None:
            return
        count = file.size() // ENTRY.size

        def last_offset(number: int) -> int:
            return next(self._read(file, number, 1, cached_only)).last_offset

        first = bisect.bisect_left(range(count), from_offset, key=last_offset)
        for number in range(first, count, _ENTRIES_A_READ):
            yield from self._read(file, number, min(_ENTRIES_A_READ, count - number), cached_only)

    def _opened(self) -> File | None:
        if self.is_missing:
            return None
        with self._lock:
            if self._file is None:
                if not self._disk.exists(self.path):
                    self.is_missing = True
                    return None
                self._file = self._disk.open(self.path)
            return self._file

    def _read(
        self, file: File, number: int, count: int, cached_only: bool
    ) -> Iterator[AbortedTransaction]:
        data = fetch(file, number * ENTRY.size, count * ENTRY.size, cached_only=cached_only)
        if len(data) < count * ENTRY.size:
            return  # truncated meanwhile
        for fields in ENTRY.iter_unpack(data):
            yield _decoded(fields, self.path)

    def truncate(self, offset: int) -> None:
        """Remove the transactions whose abort marker is at `offset` or later. Remove a damaged
        index as a whole."""
        try:
            before = self.entries()
        except CorruptionError:
            self.is_in_doubt = True
            self._keep([])
            return
        after = [entry for entry in before if entry.last_offset < offset]
        if len(after) != len(before):
            self._keep(after)

    def _keep(self, entries: Sequence[AbortedTransaction]) -> None:
        data = b"".join(ENTRY.pack(_VERSION, *entry) for entry in entries)
        self.close()
        with self._lock:
            self.is_missing, self._is_unsynced = False, True
            self._last_offset = None
            if data:
                self._disk.write(self.path, data)
            else:
                self._disk.unlink(self.path)

    def sync(self) -> None:
        """Make the file, its changes and its name durable."""
        # Recovery cannot restore lost entries: it reads only the markers above the recovery point.
        if not self._is_unsynced:
            return
        self._is_unsynced = False
        try:
            file = self._opened()
            if file is not None:
                file.sync()
            self._disk.sync_dir(self.path.rpartition("/")[0])
        except StorageError:
            self._is_unsynced = True
            raise

    def close(self) -> None:
        """Close the file. The next read, append or sync opens it again."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()
