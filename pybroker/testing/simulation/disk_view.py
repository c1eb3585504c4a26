"""A simulated disk as one process sees it, with the interfaces `Disk` and `File`. The classes
behave like those in `storage/files.py`, including the texts of errors."""

from __future__ import annotations

import contextlib
import errno
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from pybroker.errors import DiskFull, StorageError
from pybroker.ports import Buffer
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_faults import CrashPoint, ProcessKilled, os_error, refusal
from pybroker.testing.simulation.inodes import DirectoryNode, FileNode

_DIRECTORY_BYTES: Final = 4096


@contextlib.contextmanager
def _reported(operation: str, path: str, *, is_write: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(operation, path, error, is_write=is_write) from error


class SimFile:
    """A `File` on a simulated disk. As with a real `File`, the path is looked up at the first
    use."""

    __slots__ = ("_closed", "_disk", "_node", "_path", "_size", "_view")

    def __init__(self, path: str, size: int, view: DiskView, disk: SimDisk) -> None:
        self._path = path
        self._size = size
        self._view = view
        self._disk = disk
        self._node: FileNode | None = None
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._size

    def _opened(self) -> FileNode:
        if self._closed:
            raise StorageError(f"the file {self._path} cannot be used: it is closed")
        with _reported("open", self._path, is_write=True):
            node = self._disk.walk(self._path)
            if isinstance(node, DirectoryNode):
                raise os_error(errno.EISDIR)
        self._node = node
        return node

    def append(self, data: Buffer) -> None:
        view = self._view
        if view.is_dead:
            raise ProcessKilled
        node = self._node or self._opened()
        chunk = bytes(data)
        try:
            view.put(node, self._path, "append", self._size, chunk)
        except OSError as error:
            written = view.put_part(node, self._size, chunk) if error.errno == errno.ENOSPC else 0
            view.grow(node, node.cut(self._size))
            if written:
                raise DiskFull(
                    f"append to {self._path}: only {written} of {len(chunk)} bytes were written:"
                    f" {error.strerror}"
                ) from error
            raise refusal("append to", self._path, error, is_write=True) from error
        self._size += len(chunk)

    def pread(self, position: int, length: int) -> bytes:
        if self._view.is_dead:
            raise ProcessKilled
        node = self._node or self._opened()
        if self._disk.faults.is_any:
            with _reported("read", self._path):
                self._disk.faults.meet("read", self._path)
        return bytes(memoryview(node.data)[position : position + length])

    def pread_cached(self, position: int, length: int) -> Buffer | None:
        expected = min(length, self._size - position)
        if expected <= 0:
            return b""
        if self._disk.luck() < self._disk.miss_probability:
            return None
        data = self.pread(position, expected)
        return data if len(data) == expected else None

    def truncate(self, size: int) -> None:
        view = self._view
        node = self._checked()
        with _reported("truncate", self._path):
            view.begin("truncate", self._path, size)
            view.grow(node, node.cut(size))
        self._size = size

    def sync(self) -> None:
        node = self._checked()
        with _reported("sync", self._path):
            self._view.sync(node, self._path)

    def _checked(self) -> FileNode:
        self._view.look()
        return self._node or self._opened()

    def close(self) -> None:
        self._view.look()
        self._closed = True
        self._node = None


class DiskView:
    """The `Disk` of one simulated process. After the process has ended, all operations raise
    ProcessKilled."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.is_dead = False
        self._locked: list[FileNode] = []
        disk.on_process_end.append(self.end)

    def end(self) -> None:
        """Release the file locks of the ended process. All later operations raise ProcessKilled."""
        self.is_dead = True
        for node in self._locked:
            node.is_locked = False
        self._locked.clear()

    # steps shared by all operations

    def look(self) -> None:
        """Raise ProcessKilled if the process of this view has ended."""
        if self.is_dead:
            raise ProcessKilled

    def begin(self, operation: str, path: str, length: int = 0) -> None:
        """Apply the disk's faults to an operation that is about to change something. Raises
        ProcessKilled or OSError."""
        if self.is_dead:
            raise ProcessKilled
        disk = self._disk
        if disk.faults.is_any:
            point = disk.faults.death(operation, path)
            if point is not None:
                self._die(point)
            disk.faults.meet(operation, path)
        disk.environment.note(f"{disk.name} {operation} {path} {length}")

    def put(self, node: FileNode, path: str, operation: str, position: int, data: bytes) -> None:
        """Write `data` at the byte `position` of a file. Raises OSError if nothing was written. At
        a crash point, write `CrashPoint.after_bytes` bytes, and raise ProcessKilled."""
        disk = self._disk
        if disk.faults.is_any:
            point = disk.faults.death(operation, path)
            if point is not None:
                self.grow(node, node.write(position, data[: point.after_bytes]))
                self._die(point)
            disk.faults.meet(operation, path)
        if disk.capacity is not None and disk.used_bytes + len(data) > disk.capacity:
            raise os_error(errno.ENOSPC)
        grown = node.write(position, data)
        if node.is_linked:
            disk.used_bytes += grown
        node.modified_ms = disk.wall_ms()
        if not node.is_awaited:
            disk.await_write_back(node)
        disk.environment.note(f"{disk.name} {operation} {path} {len(data)} {zlib.crc32(data):08x}")

    def put_part(self, node: FileNode, position: int, data: bytes) -> int:
        """Called after a write failed with ENOSPC. If `data` does not fit, store the first bytes
        that fit, and return their number. Otherwise an injected fault caused the ENOSPC: write
        nothing, and return 0."""
        room = self._disk.free_bytes()
        if room >= len(data):
            return 0
        self.grow(node, node.write(position, data[:room]))
        return room

    def grow(self, node: FileNode, grown: int) -> None:
        """Update the disk's used bytes and the file's modification time after a growth by `grown`
        bytes, and schedule the write-back."""
        if node.is_linked:
            self._disk.used_bytes += grown
        node.modified_ms = self._disk.wall_ms()
        self._disk.await_write_back(node)

    def sync(self, node: FileNode, path: str) -> None:
        """Make the changes of the file durable. Raises ProcessKilled or OSError. After an OSError
        the changes never become durable."""
        try:
            self.begin("sync", path)
        except OSError:
            node.forget_pending()
            raise
        node.settle()

    def _die(self, point: CrashPoint) -> NoReturn:
        try:
            self._disk.faults.die(point)
        finally:
            self.end()

    def _directory(self, path: str) -> DirectoryNode:
        """Return the directory at `path`. Raises OSError if it is missing or a file."""
        node = self._disk.walk(path)
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR)
        return node

    def _file(self, path: str) -> FileNode:
        """Return the file at `path`. Raises OSError if it is missing or a directory."""
        node = self._disk.walk(path)
        if isinstance(node, DirectoryNode):
            raise os_error(errno.EISDIR)
        return node

    def _file_or_new(self, path: str) -> FileNode:
        """Return the file at `path`, created if missing. Raises OSError."""
        directory, name = self._disk.parent(path)
        node = directory.entries.get(name)
        if node is None:
            self.begin("create", path)
            node = FileNode(self._disk.wall_ms())
            self._disk.change_names(node, None, (directory, name))
        if isinstance(node, DirectoryNode):
            raise os_error(errno.EISDIR)
        return node

    def _replace_content(self, path: str, data: bytes) -> FileNode:
        """Replace the content of the file at `path`. Create the file if it is missing. Raises
        OSError."""
        node = self._file_or_new(path)
        if node.data:
            self.begin("truncate", path)
            self.grow(node, node.cut(0))
        try:
            self.put(node, path, "write", 0, data)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self.put_part(node, 0, data)
            raise
        return node

    # the port: files

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.look()
        with _reported("open", path, is_write=True):
            node = self._file_or_new(path) if create else self._disk.walk(path)
        size = len(node.data) if isinstance(node, FileNode) else _DIRECTORY_BYTES
        return SimFile(path, size, self, self._disk)

    def read(self, path: str) -> bytes:
        self.look()
        try:
            node = self._file(path)
            if self._disk.faults.is_any:
                self._disk.faults.meet("read", path)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(errno.ENOENT, error.strerror, path) from None
            raise refusal("read", path, error) from error
        return bytes(node.data)

    def write(self, path: str, data: bytes) -> None:
        with _reported("write", path, is_write=True):
            self.look()
            self._replace_content(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self.look()
        temporary = f"{path}.tmp"
        try:
            with _reported("write", temporary, is_write=True):
                self.sync(self._replace_content(temporary, data), temporary)
        except DiskFull:
            with contextlib.suppress(StorageError):
                self.unlink(temporary)
            raise
        self.rename(temporary, path)
        self.sync_dir(path.rpartition("/")[0])

    def size(self, path: str) -> int:
        self.look()
        with _reported("look at", path):
            node = self._disk.walk(path)
        return len(node.data) if isinstance(node, FileNode) else _DIRECTORY_BYTES

    def modified_ms(self, path: str) -> int:
        self.look()
        with _reported("look at", path):
            node = self._disk.walk(path)
        return node.modified_ms if isinstance(node, FileNode) else self._disk.wall_ms()

    # the port: names

    def rename(self, old: str, new: str) -> None:
        with _reported("rename", old, is_write=True):
            source, target = self._disk.parent(old), self._disk.parent(new)
            node = source[0].entries.get(source[1])
            if node is None:
                raise os_error(errno.ENOENT)
            there = target[0].entries.get(target[1])
            _check_rename(node, there, target[0])
            self.begin("rename", f"{old} to {new}")
            if node is not there:
                self._disk.change_names(node, source, target)

    def unlink(self, path: str) -> None:
        with _reported("delete", path):
            self.look()
            try:
                self._file(path)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                raise
            self._remove(path)

    def _remove(self, path: str) -> None:
        """Remove the file or the empty directory at `path`. Raises OSError."""
        directory, name = self._disk.parent(path)
        self.begin("delete", path)
        self._disk.change_names(directory.entries[name], (directory, name), None)

    def remove_tree(self, path: str) -> None:
        with _reported("delete", path):
            self.look()
            try:
                directory = self._directory(path)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                raise
            self._remove_content(directory, path)
            self._remove(path)

    def _remove_content(self, directory: DirectoryNode, path: str) -> None:
        for name, node in sorted(directory.entries.items()):
            if isinstance(node, DirectoryNode):
                self._remove_content(node, f"{path}/{name}")
            self._remove(f"{path}/{name}")

    def make_dirs(self, path: str) -> None:
        with _reported("make directory", path, is_write=True):
            self.look()
            node = self._disk.root
            names = [name for name in path.split("/") if name]
            for depth, name in enumerate(names):
                found = node.entries.get(name)
                if found is None:
                    self.begin("make directory", "/" + "/".join(names[: depth + 1]))
                    found = DirectoryNode()
                    self._disk.change_names(found, None, (node, name))
                if isinstance(found, FileNode):
                    is_last = depth == len(names) - 1
                    raise os_error(errno.EEXIST if is_last else errno.ENOTDIR)
                node = found

    def sync_dir(self, path: str) -> None:
        with _reported("sync directory", path):
            self.look()
            directory = self._directory(path)
            self.begin("sync directory", path)
            directory.settle()

    def list_dir(self, path: str) -> list[str]:
        self.look()
        with _reported("list", path):
            return sorted(self._directory(path).entries)

    def exists(self, path: str) -> bool:
        self.look()
        return self._disk.find(path) is not None

    def is_dir(self, path: str) -> bool:
        self.look()
        return isinstance(self._disk.find(path), DirectoryNode)

    def writable(self, path: str) -> bool:
        return self.exists(path)

    def free_bytes(self, path: str) -> int:
        self.look()
        with _reported("look at", path):
            self._disk.walk(path)
        return self._disk.free_bytes()

    def lock(self, path: str, owner: str) -> Callable[[], None] | None:
        with _reported("lock", path):
            self.look()
            node = self._file_or_new(path)
            if node.is_locked:
                return None
            node.is_locked = True
            self._locked.append(node)
            self._replace_content(path, owner.encode())

        def release() -> None:
            if node in self._locked:
                self._locked.remove(node)
                node.is_locked = False

        return release


def _check_rename(
    node: FileNode | DirectoryNode,
    replaced: FileNode | DirectoryNode | None,
    directory: DirectoryNode,
) -> None:
    """Raise OSError if `node` cannot be moved into `directory`. `replaced` is the file or directory
    that has the new name already, None if there is none."""
    if isinstance(node, DirectoryNode) and (node is directory or directory in node.nodes()):
        raise os_error(errno.EINVAL)
    if replaced is None or replaced is node:
        return
    if isinstance(replaced, DirectoryNode):
        if isinstance(node, FileNode):
            raise os_error(errno.EISDIR)
        if replaced.entries:
            raise os_error(errno.ENOTEMPTY)
    elif isinstance(node, DirectoryNode):
        raise os_error(errno.ENOTDIR)
