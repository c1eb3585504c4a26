"""Sockets for kazoo that cost fewer system calls: they wait by `poll`, without an epoll descriptor,
and read many messages at once."""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Callable, Sequence
from typing import Final

_READ_BYTES: Final = 64 * 1024


class ReadAheadSocket:
    """A connected socket that reads more bytes than its caller asks for, and keeps the rest. Only
    `pending` is thread-safe."""

    def __init__(self, connection: socket.socket, on_close: Callable[[], None]) -> None:
        self._connection = connection
        self._on_close = on_close
        self._kept = b""
        self._position = 0
        self.fileno = connection.fileno
        self.setblocking = connection.setblocking
        self.send = connection.send

    def pending(self) -> int:
        """Return how many bytes can be read without a wait. kazoo calls this before it waits for
        the socket."""
        return len(self._kept) - self._position

    def recv(self, length: int) -> bytes:
        """Return at most `length` bytes; b"" at the end of the stream. Raises OSError."""
        if self._position == len(self._kept):
            self._kept, self._position = self._connection.recv(max(length, _READ_BYTES)), 0
        start = self._position
        chunk = self._kept[start : start + length]
        self._position = start + len(chunk)
        return chunk

    def close(self) -> None:
        """Close the connection, and drop the kept bytes."""
        self._connection.close()
        self._kept, self._position = b"", 0
        self._on_close()


Waitable = socket.socket | ReadAheadSocket


def wait(
    readers: Sequence[Waitable], writers: Sequence[Waitable], timeout_s: float | None
) -> tuple[list[Waitable], list[Waitable]]:
    """Wait until a socket is ready, at most `timeout_s` seconds (None: no limit). Return (readable
    readers, writable writers); a broken connection counts as both. `select.select` would refuse
    file descriptors above 1023. Raises ValueError if a reader or writer is closed."""
    poll = select.poll()
    kept = []
    for each in readers:
        poll.register(each, select.POLLIN)
        if isinstance(each, ReadAheadSocket) and each.pending():
            kept.append(each)
    for each in writers:
        poll.register(each, select.POLLOUT)
    if kept:
        timeout_s = 0
    found = {
        number
        for number, _ in poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
    }
    return (
        [each for each in readers if each.fileno() in found or each in kept],
        [each for each in writers if each.fileno() in found],
    )
