"""Splits the bytes that a broker sends into the frames of its responses. A large frame is received
into one buffer: joining pieces would block other tasks for tens of milliseconds."""

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
RECEIVED_BYTES_MAX: Final = 256 * 1024
"""The maximum number of bytes that are received at once, unless they belong to a large frame."""


class ResponseFrames:
    """Splits the received bytes of one connection into frames. Keeps the bytes of an incomplete
    frame until the rest of the frame arrives."""

    def __init__(self, check: Callable[[int], None], deliver: Callable[[memoryview], None]) -> None:
        """`check` gets the length (bytes) of each frame before the rest arrives, and raises an
        exception to refuse the frame. `deliver` gets each frame without its length field."""
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
        """Take the next bytes, and deliver the complete frames. Raises the exceptions of `check`
        and `deliver`; after an exception `feed` must not be called again."""
        if self._large is not None:
            room = self._large[self._held_bytes :]
            fitting = len(room) if len(data) > len(room) else len(data)
            room[:fitting] = memoryview(data)[:fitting]
            self.filled(fitting)
            data = data[fitting:]
            if not data:
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
            self._large[: len(rest)] = rest
            self._held_bytes = len(rest)

    def room(self) -> memoryview | None:
        """Return the memory for the rest of a large frame; None if the next bytes go to `feed`."""
        return None if self._large is None else self._large[self._held_bytes :]

    def filled(self, count: int) -> None:
        """Take the next `count` bytes, which were received into `room`, and deliver the frame if it
        is complete. Raises the exceptions of `deliver`."""
        assert self._large is not None
        self._held_bytes += count
        if self._held_bytes == len(self._large):
            frame = self._large[_HEAD:].toreadonly()
            self._large, self._held_bytes, self._needed_bytes = None, 0, _HEAD
            self._deliver(frame)


class ResponseReceiver(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
    """The asyncio protocol of a client's connection: it receives the bytes of responses. It is also
    the protocol that `asyncio.StreamWriter` requires for writing requests."""

    def __init__(self) -> None:
        self._unused = asyncio.StreamReader()
        super().__init__(self._unused)
        self._scratch = memoryview(mmap.mmap(-1, RECEIVED_BYTES_MAX))
        self._is_direct = False
        self.room: Callable[[], memoryview | None] = _no_room
        """Returns the memory into which the next bytes are received, or None."""
        self.on_filled: Callable[[int], None] = _ignore
        """Called with the number of bytes that were received into `room`."""
        self.on_data: Callable[[bytes], None] = _ignore
        """Called with the next bytes of the broker, if there was no room."""
        self.on_end: Callable[[Exception | None], None] = _ignore
        """Called, perhaps more than once, when the broker sends no more bytes. The argument is the
        reason if the connection broke, else None."""

    @property
    def unused_reader(self) -> asyncio.StreamReader:
        """The StreamReader that the constructor of asyncio.StreamWriter requires. It never gets
        bytes."""
        return self._unused

    def data_received(self, data: bytes) -> None:
        """Take the next bytes. uvloop calls this in place of `get_buffer`."""
        self.on_data(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self.room()
        self._is_direct = room is not None
        return self._scratch if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_direct:
            self.on_filled(nbytes)
        else:
            self.on_data(bytes(self._scratch[:nbytes]))

    def eof_received(self) -> bool | None:
        self.on_end(None)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_end(exc)
        super().connection_lost(exc)


def _no_room() -> memoryview | None:
    return None


def _ignore(_: object) -> None:
    pass
