"""The `Disk` of a real process. No other module of the log contains system calls.

Open descriptors are in an LRU cache, but a file with unsynced content stays open: the kernel may
report a failed write only at a later sync, and a close could lose the report.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pybroker.errors import DiskFull, StorageError
from pybroker.metrics import TimeMeter
from pybroker.ports import Buffer, Clock
from pybroker.storage.buffers import ReadBuffers

HANDLES_DEFAULT: Final = 4096
SMALL_BYTES: Final = 16 * 1024
"""The result of a read up to this size is copied, so that it does not occupy a large buffer."""
_FILE_MODE: Final = 0o644
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The errors of a full disk, or of exhausted limits of the system: the operation may succeed
later."""
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_MOUNTS: Final = Path("/proc/self/mountinfo")


# A class, because a generator as context manager takes as long as the call itself.
class _reported:
    __slots__ = ("_operation", "_path")

    def __init__(self, operation: str, path: str) -> None:
        self._operation = operation
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            text = f"{self._operation} {self._path}: {error.strerror or error}"
            raise self._kind(error)(text) from error

    def _kind(self, error: OSError) -> type[StorageError]:
        return StorageError


class _reported_write(_reported):
    """Wrap a write: a full disk raises DiskFull, after which the log stays in use. Do not wrap a
    sync: a failed sync may have lost acknowledged records, so the log must not stay in use."""

    __slots__ = ()

    def _kind(self, error: OSError) -> type[StorageError]:
        return DiskFull if error.errno in _NO_ROOM else StorageError


def _is_in_memory(device: int) -> bool:
    """Return whether the file system with the device number `device` (st_dev) is in memory. False
    if unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        # ... major:minor ... - type source options; see proc_pid_mountinfo(5)
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [number]:
            return after.split()[:1] != [] and after.split()[0] in _IN_MEMORY
    return False


class _Handles:
    """The LRU cache of open file descriptors. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: OrderedDict[SystemFile, None] = OrderedDict()

    def acquire(self, file: SystemFile) -> int:
        """Return the descriptor of `file`, opened if necessary. It stays open until `release`."""
        with self._lock:
            if file.descriptor < 0:
                if file.closed:
                    raise StorageError(f"the file {file.path} cannot be used: it is closed")
                with _reported_write("open", file.path):
                    file.descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
                self._open[file] = None
                file.pins += 1  # before the eviction, which would close this file, too
                self._evict()
            else:
                self._open.move_to_end(file)
                file.pins += 1
            return file.descriptor

    def release(self, file: SystemFile) -> None:
        with self._lock:
            file.pins -= 1
            if file.closed and not file.pins:
                self._close(file)

    def close(self, file: SystemFile) -> None:
        with self._lock:
            file.closed = True
            if not file.pins:
                self._close(file)

    def synced(self) -> None:
        """If more descriptors are open than the capacity, close unused descriptors of synced files.
        Call this after a sync."""
        with self._lock:
            self._evict()

    def _evict(self) -> None:
        if len(self._open) <= self._capacity:
            return
        idle = (file for file in self._open if not file.pins and not file.unsynced)
        surplus = len(self._open) - self._capacity
        for file in [file for file, _ in zip(idle, range(surplus), strict=False)]:
            self._close(file)

    def _close(self, file: SystemFile) -> None:
        if file.descriptor >= 0:
            self._open.pop(file, None)
            with _reported("close", file.path):
                os.close(file.descriptor)
            file.descriptor = -1


class SystemFile:
    """A `File` of the operating system. Any thread may read it; only one thread at a time may
    write."""

    __slots__ = (
        "__weakref__",
        "_disk",
        "_handles",
        "_path",
        "_plain",
        "_size",
        "closed",
        "descriptor",
        "pins",
        "unsynced",
    )

    def __init__(self, path: str, size: int, disk: SystemDisk, handles: _Handles) -> None:
        self._path = path
        self._size = size
        self._disk = disk
        self._handles = handles
        # How `pread_cached` reads. None: with RWF_NOWAIT. True: with a plain read, because the file
        # system is in memory. False: neither of them works without a wait for the disk.
        self._plain: bool | None = None if _NOWAIT else False
        self.descriptor = -1
        self.pins = 0
        self.unsynced = False
        self.closed = False

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._size

    def append(self, data: Buffer) -> None:
        self.unsynced = True
        descriptor = self._handles.acquire(self)
        try:
            written = os.pwrite(descriptor, data, self._size)
            if written != len(data):
                self._cut_back(descriptor)
                raise DiskFull(
                    f"append to {self._path}: only {written} of {len(data)} bytes were written:"
                    f" {os.strerror(errno.ENOSPC)}"
                )
            self._size += written
        except OSError as error:
            self._cut_back(descriptor)
            kind = DiskFull if error.errno in _NO_ROOM else StorageError
            raise kind(f"append to {self._path}: {error.strerror}") from error
        finally:
            self._handles.release(self)

    def _cut_back(self, descriptor: int) -> None:
        with _reported("cut back", self._path):
            os.ftruncate(descriptor, self._size)

    def pread(self, position: int, length: int) -> bytes:
        descriptor = self._handles.acquire(self)
        try:
            with _reported("read", self._path):
                data = os.pread(descriptor, length, position)
                if len(data) < length and position + len(data) < self._size:
                    return self._pread_rest(descriptor, position, length, data)
                return data
        finally:
            self._handles.release(self)

    def _pread_rest(self, descriptor: int, position: int, length: int, data: bytes) -> bytes:
        parts = [data]
        done = len(data)
        while done < length and (part := os.pread(descriptor, length - done, position + done)):
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def pread_cached(self, position: int, length: int) -> Buffer | None:
        if self._plain is not None:
            return self.pread(position, length) if self._plain else None
        expected = min(length, self._size - position)
        if expected <= 0:
            return b""
        descriptor = self._handles.acquire(self)
        try:
            is_small = expected <= SMALL_BYTES
            data = bytearray(expected) if is_small else self._disk.buffers.take(expected)
            return data if os.preadv(descriptor, [data], position, _NOWAIT) == expected else None
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                self._plain = self._disk.is_in_memory(os.fstat(descriptor).st_dev)
                return bytes(os.pread(descriptor, expected, position)) if self._plain else None
            raise StorageError(f"read {self._path}: {error.strerror}") from error
        finally:
            self._handles.release(self)

    def truncate(self, size: int) -> None:
        self.unsynced = True
        descriptor = self._handles.acquire(self)
        try:
            with _reported("truncate", self._path):
                os.ftruncate(descriptor, size)
            self._size = size
        finally:
            self._handles.release(self)

    def sync(self) -> None:
        descriptor = self._handles.acquire(self)
        try:
            # Cleared first: the sync does not cover bytes appended meanwhile.
            self.unsynced = False
            with _reported("sync", self._path):
                self._disk.sync_data(descriptor)
        except StorageError:
            self.unsynced = True
            raise
        finally:
            self._handles.release(self)
        self._handles.synced()

    def close(self) -> None:
        self._handles.close(self)


class SystemDisk:
    """The `Disk` of a real process. At most `handles_max` descriptors stay open, apart from those
    of files with unsynced content."""

    def __init__(
        self,
        handles_max: int = HANDLES_DEFAULT,
        *,
        clock: Clock | None = None,
        syncs: TimeMeter | None = None,
    ) -> None:
        """`syncs` receives the duration of each sync in seconds, measured by `clock`. `syncs` must
        be thread-safe."""
        self._clock = clock
        self._syncs = syncs
        self._handles = _Handles(handles_max)
        self.buffers = ReadBuffers()
        self._in_memory: dict[int, bool] = {}

    def is_in_memory(self, device: int) -> bool:
        """Return whether the file system with the device number `device` is in memory. The answer
        is cached."""
        if device not in self._in_memory:
            self._in_memory[device] = _is_in_memory(device)
        return self._in_memory[device]

    def sync_data(self, descriptor: int) -> None:
        """Make the content of the open file `descriptor` durable. Raises OSError."""
        if self._clock is None or self._syncs is None:
            os.fdatasync(descriptor)
            return
        began = self._clock.monotonic()
        os.fdatasync(descriptor)
        self._syncs.add(self._clock.monotonic() - began)

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        with _reported_write("open", path):
            if create:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
                try:
                    size = os.fstat(descriptor).st_size
                finally:
                    os.close(descriptor)
            else:
                size = os.stat(path).st_size
        return SystemFile(path, size, self, self._handles)

    def read(self, path: str) -> bytes:
        try:
            with open(path, "rb", buffering=0) as stream:
                return stream.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"read {path}: {error.strerror}") from error

    def write(self, path: str, data: bytes) -> None:
        with _reported_write("write", path), open(path, "wb", buffering=0) as stream:
            stream.write(data)

    def replace(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        try:
            with _reported_write("write", temporary), open(temporary, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except DiskFull:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self.rename(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        with _reported_write("rename", old):
            os.replace(old, new)

    def unlink(self, path: str) -> None:
        with _reported("delete", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def list_dir(self, path: str) -> list[str]:
        with _reported("list", path):
            return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with _reported("look at", path):
            return os.stat(path).st_size

    def is_dir(self, path: str) -> bool:
        return Path(path).is_dir()

    def make_dirs(self, path: str) -> None:
        with _reported_write("make directory", path):
            Path(path).mkdir(parents=True, exist_ok=True)

    def sync_dir(self, path: str) -> None:
        with _reported("sync directory", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove_tree(self, path: str) -> None:
        with _reported("delete", path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                pass

    def modified_ms(self, path: str) -> int:
        with _reported("look at", path):
            return Path(path).stat().st_mtime_ns // 1_000_000

    def free_bytes(self, path: str) -> int:
        with _reported("look at", path):
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize

    def writable(self, path: str) -> bool:
        return os.access(path, os.W_OK | os.X_OK)

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        with _reported("lock", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                # Apache's broker takes the first kind of lock. Only the second kind also excludes
                # another broker in the same process.
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(descriptor)
                return None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, owner.encode(), 0)
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                os.close(descriptor)

        return release
