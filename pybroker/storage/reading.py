"""Reads a file with or without waiting for the disk.

If bytes are not in the page cache, a read without waiting raises `NotCached`. So a lookup in
several steps needs no checks: its caller repeats the whole lookup in a thread that may wait.
"""

from __future__ import annotations

from typing import Final

from pybroker.errors import PybrokerError
from pybroker.ports import Buffer, File

_HINTS_MAX: Final = 64


class NotCached(PybrokerError):
    """Raised if a lookup would have to wait for the disk; nothing was changed. Repeat the lookup in
    a thread that may wait."""


def fetch(file: File, position: int, length: int, *, cached_only: bool) -> Buffer:
    """Return `length` bytes from `position` on, fewer at the end of the file.

    Raises NotCached if `cached_only` is set and a byte is not in the page cache.
    """
    if not cached_only:
        return file.pread(position, length)
    data = file.pread_cached(position, length)
    if data is None:
        raise NotCached(f"{file.path}: {length} bytes at position {position} are not cached")
    return data


def hint(hints: dict[int, int], offset: int, position: int) -> None:
    """Store the position of the batch at `offset`, where a sequential reader continues."""
    if len(hints) >= _HINTS_MAX:
        hints.clear()
    hints[offset] = position
