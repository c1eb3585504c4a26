"""The receive buffer of a connection. Its size follows the bytes that arrive, not the size that a
frame's prefix claims.
"""

from __future__ import annotations

import struct
from typing import Final

from pybroker.errors import MalformedInput

INITIAL_BYTES: Final = 4 * 1024
BURST_BYTES: Final = 128 * 1024
"""A full buffer may grow up to this size even if no single frame needs it. Then bytes that a peer
sends together are read together, and the buffer seldom moves its bytes."""
LARGE_BYTES: Final = 1024 * 1024
"""A buffer larger than this is freed when a frame is released that is smaller than an eighth of the
buffer."""
_SIZE: Final = struct.Struct(">i")


class ReceiveBuffer:
    """Holds the received bytes that are not released yet: those from `_start` to `_end`. With
    `small_bytes`, the size of the buffer is at most `small_bytes`, or the size of the next frame if
    that frame is larger.

    Invariant: 0 <= _start <= _end <= len(_buffer).
    """

    __slots__ = ("_buffer", "_end", "_frame_bytes_max", "_held", "_small_bytes", "_start", "_view")

    def __init__(self, frame_bytes_max: int, small_bytes: int | None = None) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._small_bytes = small_bytes
        self._buffer = bytearray(INITIAL_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._held = 0

    @property
    def is_full(self) -> bool:
        """Whether no byte can be received before a frame is released."""
        return self._end == len(self._buffer)

    @property
    def unread_bytes(self) -> int:
        return self._end - self._start

    @property
    def frame_bytes(self) -> int:
        """The size of the next frame, including its size prefix. The size is not checked. It is 0
        until the prefix has arrived."""
        if self._end - self._start < 4:
            return 0
        size: int = _SIZE.unpack_from(self._buffer, self._start)[0]
        return size + 4

    @property
    def api_key(self) -> int | None:
        """The API key of the next frame; None until the key has arrived."""
        if self._end - self._start < 6:
            return None
        return self._buffer[self._start + 4] << 8 | self._buffer[self._start + 5]

    @property
    def first_bytes(self) -> memoryview:
        """The received bytes that are not released yet. On a new connection, these are the first
        bytes that the peer has sent."""
        return self._view[self._start : self._end]

    def writable(self) -> memoryview:
        """Return the memory for the transport's next bytes. It is empty only if the buffer is full
        and the frame that `next_frame` returned is not released yet."""
        if self._end == len(self._buffer) and not self._held:
            self._make_room()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        self._end += count

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame without its size prefix, or None. The frame is valid until
        `release`. Raises MalformedInput if the size is negative or above the limit."""
        available = self._end - self._start
        if available < 4:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        if not 0 <= size <= self._frame_bytes_max:
            raise MalformedInput(
                f"frame of {size} bytes: expected 0 to {self._frame_bytes_max} bytes "
                "(socket.request.max.bytes)"
            )
        if available < size + 4:
            return None
        self._held = size + 4
        return self._view[self._start + 4 : self._start + 4 + size]

    def release(self) -> None:
        """Free the bytes of the frame that `next_frame` has returned."""
        released = self._held
        self._start += released
        self._held = 0
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > LARGE_BYTES and released < len(self._buffer) // 8:
                self.shrink()
        if self._small_bytes is not None and len(self._buffer) > self._small_bytes:
            self._replace(max(self._small_bytes, self._end - self._start))

    def shrink(self) -> None:
        """Reduce the buffer to its initial size, if it contains no bytes."""
        if self._start == self._end and not self._held and len(self._buffer) > INITIAL_BYTES:
            self._replace(INITIAL_BYTES)

    def _make_room(self) -> None:
        """Make space at the end of a full buffer: enlarge the buffer, or move the unread bytes to
        the front."""
        size, unread = len(self._buffer), self._end - self._start
        if self._small_bytes is not None:
            if size < self._small_bytes:
                size = min(2 * size, self._small_bytes)
            elif self.frame_bytes > size:
                size = min(2 * size, self.frame_bytes)
        elif size < BURST_BYTES or unread > size // 2:
            size = min(2 * size, self._frame_bytes_max + 4 + INITIAL_BYTES)
        if size != len(self._buffer):
            self._replace(size)
            return
        # Moved in place, since a new buffer of this size costs as much as handling a request.
        self._buffer[:unread] = self._buffer[self._start : self._end]
        self._start = 0
        self._end = unread

    def _replace(self, size: int) -> None:
        unread = self._end - self._start
        grown = bytearray(size)
        grown[:unread] = self._view[self._start : self._end]
        self._buffer = grown
        self._view = memoryview(grown)
        self._start = 0
        self._end = unread
