"""Reusable memory for reads of log files. A read may use a buffer again when no view of the buffer
is left."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

BUFFER_BYTES: Final = 1024**2
"""The size of a reusable buffer: the default of a consumer's max.partition.fetch.bytes."""
BUFFERS_MAX: Final = 8
"""The number of reusable buffers. While responses to slow clients occupy all of them, each read
gets new memory."""


class ReadBuffers:
    """The reusable buffers for reads from one disk. Thread-safe."""

    def __init__(self) -> None:
        self._buffers: deque[bytearray] = deque()
        self._lock = threading.Lock()

    def take(self, length: int) -> memoryview:
        """Return a writable view of `length` bytes. The memory is not reused while a view of it
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
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
