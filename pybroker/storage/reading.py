"""Reads a file, with or without waiting for the disk. After `NotCached`, the caller repeats the
whole lookup in a thread."""

from __future__ import annotations

from typing import Final

from pybroker.errors import PybrokerError
from pybroker.ports import Buffer, File

_HINTS_MAX: Final = 64


class NotCached(PybrokerError):
    """Raised if a lookup would have to wait for the disk. The caller repeats the lookup in a
    thread."""


def fetch(file: File, position: int, length: int, *, cached_only: bool) -> Buffer:
    """Return `length` bytes of the file; fewer at the end of the file. With `cached_only`, raises
    NotCached if a byte is not in the page cache."""
    if not cached_only:
        return file.pread(position, length)
    data = file.pread_cached(position, length)
    if data is None:
        raise NotCached(
            f"{file.path}: {length} bytes at position {position} are not in the page cache"
        )
    return data


def hint(hints: dict[int, int], offset: int, position: int) -> None:
    """Store in `hints` the file position of the batch at `offset`, for a sequential reader."""
    if len(hints) >= _HINTS_MAX:
        hints.clear()
    hints[offset] = position
