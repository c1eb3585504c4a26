"""A `Disk` in front of the real one that fails on demand."""

from __future__ import annotations

from collections.abc import Callable

from pybroker.errors import DiskFull, StorageError
from pybroker.ports import Buffer, Disk, File
from pybroker.storage.files import SystemDisk


class Faults:
    """The faults of a disk.

    - `room_bytes`: the number of bytes that can still be appended; None for no limit.
    - `short_writes`: a write that does not fit is written in part and cannot be undone.
    - `sync_fails`: the number of syncs from now on that fail.
    - `writes_fail`: appends fail, as on a broken or read-only disk.
    - `cached`: whether reads find their bytes in the page cache.
    - `full_path`: the disk has no free space below this path."""

    def __init__(self) -> None:
        self.room_bytes: int | None = None
        self.short_writes = False
        self.sync_fails = False
        self.writes_fail = False
        self.cached = True
        self.full_path: str | None = None
        self.syncs: list[str] = []
        self.during_sync: Callable[[], None] = lambda: None
        """Called during the next syncs."""


class FaultyFile:
    def __init__(self, file: File, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def append(self, data: Buffer) -> None:
        if self._faults.writes_fail:
            raise StorageError(f"append to {self.path}: Input/output error")
        room = self._faults.room_bytes
        if room is not None and len(data) > room:
            if self._faults.short_writes:
                self._file.append(bytes(data)[:room])
            raise DiskFull(f"append to {self.path}: No space left on device")
        self._file.append(data)
        if room is not None:
            self._faults.room_bytes = room - len(data)

    def pread(self, position: int, length: int) -> bytes:
        return self._file.pread(position, length)

    def pread_cached(self, position: int, length: int) -> bytes | None:
        return self._file.pread(position, length) if self._faults.cached else None

    def truncate(self, size: int) -> None:
        if self._faults.short_writes:
            raise StorageError(f"truncate {self.path}: Input/output error")
        self._file.truncate(size)

    def sync(self) -> None:
        self._faults.syncs.append(self.path)
        if self._faults.sync_fails:
            raise StorageError(f"sync {self.path}: Input/output error")
        self._faults.during_sync()
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class FaultyDisk:
    """A `Disk` that behaves like the real one, except for `faults`."""

    def __init__(self) -> None:
        self._disk: Disk = SystemDisk()
        self.faults = Faults()

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        return FaultyFile(self._disk.open(path, create=create), self.faults)

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def write(self, path: str, data: bytes) -> None:
        self._need(path, len(data))
        self._disk.write(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._need(path, len(data))
        self._disk.replace(path, data)

    def _need(self, path: str, length: int) -> None:
        room, full = self.faults.room_bytes, self.faults.full_path
        if (room is not None and length > room) or (full is not None and path.startswith(full)):
            raise DiskFull(f"write {path}: No space left on device")

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def unlink(self, path: str) -> None:
        self._disk.unlink(path)

    def list_dir(self, path: str) -> list[str]:
        return self._disk.list_dir(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def is_dir(self, path: str) -> bool:
        return self._disk.is_dir(path)

    def make_dirs(self, path: str) -> None:
        self._disk.make_dirs(path)

    def sync_dir(self, path: str) -> None:
        if self.faults.sync_fails:
            raise StorageError(f"sync directory {path}: Input/output error")
        self._disk.sync_dir(path)

    def remove_tree(self, path: str) -> None:
        self._disk.remove_tree(path)

    def modified_ms(self, path: str) -> int:
        return self._disk.modified_ms(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def writable(self, path: str) -> bool:
        return self._disk.writable(path)

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        return self._disk.lock(path, owner)
