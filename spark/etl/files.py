"""The file system under the output of a job: few calls, each of which may be the last one that a
process makes. `store` builds its promises out of them, and its tests put a faulty twin in the place
of this one.

A path has to be in a file system of this machine or mounted by it, which knows hard links.
"""

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
"""Tasks that were cancelled tidy up, or write, for a moment yet."""


class OutputError(PybrokerError):
    """The output of a job cannot be read or written. The message names the path and says what was
    expected there."""


class Files(Protocol):
    """What the store asks of a file system. Errors of the system are OSErrors."""

    def make_folder(self, path: Path) -> None:
        """Creates one folder, whose parent exists; nothing happens if it exists already."""

    def create(self, path: Path, content: bytes) -> None:
        """Creates a file that did not exist. Neither content nor name outlive a loss of power
        yet."""

    def sync(self, path: Path) -> None:
        """From here on the content of a file outlives a loss of power."""

    def sync_folder(self, path: Path) -> None:
        """From here on the names in a folder outlive a loss of power."""

    def link(self, source: Path, target: Path) -> None:
        """Gives a file a second name. Raises FileExistsError if the name is taken."""

    def remove(self, path: Path) -> None:
        """Removes a file; nothing happens if there is none."""

    def remove_tree(self, path: Path) -> None:
        """Removes a folder with all that is in it; nothing happens if there is none."""

    def read(self, path: Path) -> bytes: ...

    def names(self, path: Path) -> list[str]:
        """What is in a folder, in order; nothing if there is no such folder."""


class RealFiles:
    """The `Files` of the operating system."""

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
            # A server of NFS may have done it and lost the answer: the repeated call finds our own.
            if not source.samefile(target):
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise OutputError(
                f"{target.parent}: the file system refuses hard links ({error.strerror}); "
                "a job's output needs a file system that knows them"
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
