"""Reading a file with or without waiting for the disk, by one function.

A lookup in several steps would have to check after each step whether its bytes were in memory.
Instead the first miss raises `NotCached`, and the whole lookup is repeated where waiting is
allowed.
"""

from __future__ import annotations

from typing import Final

from pybroker.errors import PybrokerError
from pybroker.ports import Buffer, File

_HINTS_MAX: Final = 64


class NotCached(PybrokerError):
    """The lookup would have to wait for the disk; nothing was changed. Repeat it where waiting is
    allowed."""


def fetch(file: File, position: int, length: int, *, cached_only: bool) -> Buffer:
    """Up to `length` bytes from `position`, fewer only at the end of the file.

    Raises NotCached if `cached_only` is set and a byte is not in memory.
    """
    if not cached_only:
        return file.pread(position, length)
    data = file.pread_cached(position, length)
    if data is None:
        raise NotCached(f"{file.path} at {position}")
    return data


def hint(hints: dict[int, int], offset: int, position: int) -> None:
    """Note the position at which the reader that returns for `offset` continues."""
    if len(hints) >= _HINTS_MAX:
        hints.clear()
    hints[offset] = position
