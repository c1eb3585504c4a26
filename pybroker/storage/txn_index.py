"""The index of the aborted transactions of a segment (`.txnindex`).

The index has entries of 34 bytes, big-endian `i16 version 0, i64 producer id, i64 first offset, i64
last offset, i64 last stable offset`, in the order of the abort markers. The last offset is the
offset of the abort marker. A segment without aborted transactions has no such file.
"""

from __future__ import annotations

import struct
import threading
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError, StorageError
from pybroker.ports import Disk

ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """An aborted transaction: the records of `producer_id` from `first_offset` to the abort marker
    at `last_offset`. `last_stable_offset` is the partition's last stable offset after the marker
    was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode(data: bytes, path: str) -> list[AbortedTransaction]:
    """Return the entries in the content `data` of a transaction index. Raises CorruptionError,
    which names the file `path`, if `data` is damaged."""
    if len(data) % ENTRY.size:
        raise CorruptionError(
            f"{path}: expected a multiple of {ENTRY.size} bytes, the file has {len(data)}"
        )
    entries: list[AbortedTransaction] = []
    for version, *fields in ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise CorruptionError(
                f"{path}: entry {len(entries)} has version {version}, expected {_VERSION}"
            )
        entries.append(AbortedTransaction(*fields))
    return entries


class TxnIndex:
    """The transaction index of one segment. The file is small and rarely changes, so it is read and
    written as a whole. Most segments have no file, and every read_committed fetch needs the index.
    So the object remembers that the file does not exist."""

    __slots__ = ("_disk", "_is_missing", "_is_unsynced", "_lock", "path")

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._is_missing = False
        self._is_unsynced = False
        # A reader in another thread must not find the file missing while it is being created.
        self._lock = threading.Lock()

    def append(self, entry: AbortedTransaction) -> None:
        with self._lock:
            self._is_missing, self._is_unsynced = False, True
            file = self._disk.open(self.path, create=True)
            try:
                file.append(ENTRY.pack(_VERSION, *entry))
            finally:
                file.close()

    def entries(self) -> list[AbortedTransaction]:
        """Return all entries, in the order of the markers. Raises CorruptionError if the file is
        damaged."""
        if self._is_missing:
            return []
        with self._lock:
            try:
                return decode(self._disk.read(self.path), self.path)
            except FileNotFoundError:
                self._is_missing = True
                return []

    def keep(self, entries: list[AbortedTransaction]) -> None:
        """Replace all entries of the index by `entries`."""
        data = b"".join(ENTRY.pack(_VERSION, *entry) for entry in entries)
        with self._lock:
            self._is_missing, self._is_unsynced = False, True
            if data:
                self._disk.write(self.path, data)
            else:
                self._disk.unlink(self.path)

    def truncate(self, offset: int) -> None:
        """Remove the transactions whose abort marker is at `offset` or later."""
        before = self.entries()
        after = [entry for entry in before if entry.last_offset < offset]
        if len(after) != len(before):
            self.keep(after)

    def sync(self) -> None:
        """Make the changes of the file, and its name, durable. Recovery could not restore lost
        entries: it reads no markers below the recovery point."""
        if not self._is_unsynced:
            return
        self._is_unsynced = False
        try:
            if self._disk.exists(self.path):
                file = self._disk.open(self.path)
                try:
                    file.sync()
                finally:
                    file.close()
            self._disk.sync_dir(self.path.rpartition("/")[0])
        except StorageError:
            self._is_unsynced = True
            raise
