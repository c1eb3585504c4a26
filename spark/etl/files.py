"""The file operations for a job's output, in a file system with hard links. The process can die
after any operation. Callers must allow for that."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final, Protocol

from pybroker.errors import PybrokerError

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_OTHERS_AT_IT: Final = frozenset({errno.ENOENT, errno.ENOTEMPTY})
_REMOVALS_MAX: Final = 20
"""The most tries to remove a folder: cancelled tasks may still write files for a short time."""


class OutputError(PybrokerError):
    """The output of a job cannot be read or written. The message names the path and the expected
    content."""


class Files(Protocol):
    """The file operations that the store needs. Errors of the file system are OSErrors."""

    def make_folder(self, path: Path) -> None:
        """Create one folder in an existing parent folder. An existing folder is no error."""

    def create(self, path: Path, content: bytes) -> None:
        """Create a file. Raises FileExistsError if the file exists. Until the file and its folder
        are synced, a power loss may remove the file."""

    def sync(self, path: Path) -> None:
        """Make the content of a file durable."""

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""

    def link(self, source: Path, target: Path) -> None:
        """Create the hard link `target` to the file `source`. Raises FileExistsError if `target`
        exists."""

    def remove(self, path: Path) -> None:
        """Remove a file. A missing file is no error."""

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its content. A missing folder is no error."""

    def read(self, path: Path) -> bytes: ...

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted. The list is empty if the folder does not exist."""


class RealFiles:
    """The file operations of the operating system."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def create(self, path: Path, content: bytes) -> None:
        with path.open("xb") as file:
            file.write(content)

    def sync(self, path: Path) -> None:
        _sync(path, os.O_RDONLY)

    def sync_folder(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def link(self, source: Path, target: Path) -> None:
        try:
            os.link(source, target)
        except FileExistsError:
            # An NFS server may create the link but lose the response: the repeated call then
            # finds our own link.
            if not source.samefile(target):
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise OutputError(
                f"{target.parent}: the file system refuses hard links ({error.strerror}); "
                "a job's output needs a file system that supports them"
            ) from error

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        for left in reversed(range(_REMOVALS_MAX)):
            try:
                if path.is_dir():
                    shutil.rmtree(path)
                return
            except OSError as error:
                if not left or error.errno not in _OTHERS_AT_IT:
                    raise

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
