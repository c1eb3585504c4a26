"""Splits the bytes that a broker sends into the frames of its responses. This module does no I/O.

The event loop passes each piece of bytes as it arrives, so no task has to wait for them. A frame
that arrives whole in one piece, as most do, is not copied. The pieces of a large frame are copied
one by one, into memory that the system provides page by page. To join them at the end would hold up
other tasks for tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections.abc import Callable
from typing import Final

FRAME_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = FRAME_LENGTH.size
LARGE_BYTES: Final = 1024 * 1024
"""The size from which a frame counts as large."""


class ResponseFrames:
    """The bytes of one connection that have arrived and do not belong to a complete frame yet."""

    def __init__(self, check: Callable[[int], None], deliver: Callable[[memoryview], None]) -> None:
        """`check` is called once with the length (bytes) of each frame, as soon as the length has
        arrived. It raises an exception if the frame is not acceptable. `deliver` receives each
        complete frame, without its length."""
        self._check = check
        self._deliver = deliver
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = _HEAD
        """The number of bytes that must be held before `feed` can continue: the size of the next
        frame with its length field, or, while that length is unknown, the size of the field."""
        self._large: memoryview | None = None
        """The memory for the next frame and its length field, if the frame is large. The first
        `_held_bytes` bytes are filled."""

    @property
    def is_partial(self) -> bool:
        """Whether some, but not all bytes of a frame have arrived."""
        return self._held_bytes > 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes, and deliver the frames that are complete now. Raises the exceptions
        of `check` and `deliver`; after an exception `feed` must not be called again."""
        if self._large is not None:
            data = self._fill(self._large, data)
            if self._large is not None or not data:
                return
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            return
        held = data if len(self._pieces) == 1 else b"".join(self._pieces)
        start, is_checked = 0, self._needed_bytes > _HEAD
        self._needed_bytes = _HEAD
        while len(held) - start >= _HEAD:
            (length,) = FRAME_LENGTH.unpack_from(held, start)
            if not is_checked:
                self._check(length)
            is_checked = False
            end = start + _HEAD + length
            if end > len(held):
                self._needed_bytes = end - start
                break
            frame = memoryview(held)[start + _HEAD : end]
            # A frame that shares its piece of bytes with another frame is copied. Otherwise it
            # would keep the other frame in memory as long as its own records are in use.
            self._deliver(frame if end - start == len(held) else memoryview(bytes(frame)))
            start = end
        rest = held[start:] if start else held
        self._pieces, self._held_bytes = [rest] if rest else [], len(rest)
        if self._needed_bytes >= LARGE_BYTES:
            self._pieces, self._held_bytes = [], 0
            self._large = memoryview(mmap.mmap(-1, self._needed_bytes))
            self._fill(self._large, rest)

    def _fill(self, large: memoryview, data: bytes) -> bytes:
        """Add bytes to the large frame, and deliver it if it is complete. Return the other
        bytes."""
        start, end = self._held_bytes, min(self._held_bytes + len(data), len(large))
        large[start:end] = memoryview(data)[: end - start]
        self._held_bytes = end
        if end == len(large):
            self._large, self._held_bytes, self._needed_bytes = None, 0, _HEAD
            self._deliver(large[_HEAD:].toreadonly())
        return data[end - start :]


class ResponseReceiver(asyncio.StreamReaderProtocol):
    """The asyncio protocol of a client's connection. It passes received bytes on at once; an
    `asyncio.StreamWriter` on it writes requests."""

    def __init__(self) -> None:
        self._unused = asyncio.StreamReader()
        super().__init__(self._unused)
        self.on_data: Callable[[bytes], None] = _ignore
        """Called with the next bytes of the broker."""
        self.on_end: Callable[[Exception | None], None] = _ignore
        """Called, perhaps more than once, when the broker sends no more bytes. The argument is the
        reason if the connection broke, else None."""

    @property
    def unused_reader(self) -> asyncio.StreamReader:
        """A reader that gets no bytes, for the constructor of the writer."""
        return self._unused

    def data_received(self, data: bytes) -> None:
        self.on_data(data)

    def eof_received(self) -> bool | None:
        self.on_end(None)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_end(exc)
        super().connection_lost(exc)


def _ignore(_: object) -> None:
    pass
