"""Reusable memory for reads.

Allocating a megabyte for each answer costs the kernel as much as copying it. So a few buffers are
kept, and each is reused once no view of it is left: a `bytearray` refuses to change its size while
a view exists, which tells.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

BUFFER_BYTES: Final = 1024**2
"""The bytes that a consumer requests of a partition by default (max.partition.fetch.bytes)."""
BUFFERS_MAX: Final = 8
"""Answers that wait for slow peers hold buffers for long; further buffers are used once."""


class ReadBuffers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._buffers: deque[bytearray] = deque()
        self._lock = threading.Lock()

    def take(self, length: int) -> memoryview:
        """Return `length` writable bytes. They stay in use as long as the view, or a part of it,
        exists."""
        if length > BUFFER_BYTES:
            return memoryview(bytearray(length))
        with self._lock:
            for _ in range(len(self._buffers)):
                buffer = self._buffers[0]
                if _is_free(buffer):
                    return memoryview(buffer)[:length]
                self._buffers.rotate(-1)
            if len(self._buffers) == BUFFERS_MAX:
                return memoryview(bytearray(length))
            buffer = bytearray(BUFFER_BYTES)
            self._buffers.appendleft(buffer)
            return memoryview(buffer)[:length]


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of the buffer exists."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
