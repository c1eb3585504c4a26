"""An asyncio transport over a simulated socket. It calls protocols like asyncio's own transport."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.tcp import ConnectedSocket

log = logging.getLogger(__name__)

_HIGH_BYTES: Final = 64 * 1024
_WRITES_AFTER_LOSS_MAX: Final = 5

Data = bytes | bytearray | memoryview


class StreamTransport(asyncio.Transport):
    """The asyncio transport of one simulated connection. It owns the socket."""

    def __init__(
        self, loop: ProcessLoop, sock: ConnectedSocket, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__(
            {"socket": sock, "sockname": sock.getsockname(), "peername": sock.getpeername()}
        )
        self._loop = loop
        self._sock = sock
        self.set_protocol(protocol)
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._protocol_paused = False
        self._paused = False
        self._closing = False
        self._eof = False
        self._resets = False
        self._lost = 0
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._watch)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol: Any = protocol
        buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._receive = self._receive_into if buffered else self._receive_data

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # reading

    def is_reading(self) -> bool:
        return not (self._paused or self._closing)

    def pause_reading(self) -> None:
        if not (self._closing or self._paused):
            self._paused = True
            self._sock.watch(None)

    def resume_reading(self) -> None:
        if not self._closing and self._paused:
            self._paused = False
            self._watch()

    def _watch(self) -> None:
        if not (self._closing or self._paused):
            self._sock.watch(self._read)

    def _read(self) -> None:
        if self._lost:
            return
        try:
            ended = self._receive()
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        except Exception as error:
            self._fail(error, "the protocol failed to receive data")
            return
        if not ended:
            return
        try:
            keep_open = self._protocol.eof_received()
        except Exception as error:
            self._fail(error, "the protocol failed to handle the end of data")
            return
        if keep_open:
            self._sock.watch(None)
        else:
            self.close()

    def _receive_into(self) -> bool:
        """Receive data into the buffer of the protocol. Return True at the end of data."""
        buffer = self._protocol.get_buffer(-1)
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        length = self._sock.receive_into(buffer)
        if length:
            self._protocol.buffer_updated(length)
        return not length

    def _receive_data(self) -> bool:
        data = self._sock.receive()
        if data:
            self._protocol.data_received(data)
        return not data

    # writing

    def write(self, data: Data) -> None:
        """Send the data, and buffer a copy of the bytes that the socket does not accept now."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, bytearray or memoryview, not {type(data)!r}")
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data:
            return
        if self._lost:
            if self._lost >= _WRITES_AFTER_LOSS_MAX:
                log.warning("write to a lost connection peer=%s", self._sock.peer.name)
            self._lost += 1
            return
        data = bytes(data)
        if not self._buffer:
            try:
                sent = self._sock.send(data)
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._sock.watch_room(self._write_more)
        self._buffer.append(data)
        self._buffered += len(data)
        self._pause_if_much()

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        self.write(b"".join(list_of_data))

    def _write_more(self) -> None:
        if self._lost:
            return
        buffer = self._buffer
        try:
            while buffer:
                piece = buffer[0]
                sent = self._sock.send(piece)
                self._buffered -= sent
                if sent < len(piece):
                    buffer[0] = piece[sent:]
                    break
                buffer.popleft()
        except OSError as error:
            self._lose(error)
            return
        if buffer:
            self._sock.watch_room(self._write_more)
        if self._protocol_paused and self._buffered <= self._low:
            self._protocol_paused = False
            self._tell("resume_writing")  # may call write
        if not buffer:
            if self._closing:
                if not self._lost:
                    self._lost += 1
                    self._end(None)
            elif self._eof:
                self._sock.send_end()

    def _pause_if_much(self) -> None:
        if self._buffered > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._tell("pause_writing")

    def _tell(self, method: str) -> None:
        try:
            getattr(self._protocol, method)()
        except Exception as error:
            message = f"the protocol failed in {method}()"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high is {high} and low is {low}, expected high >= low >= 0")
        self._high, self._low = high, low
        self._pause_if_much()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self._closing or self._eof):
            self._eof = True
            if not self._buffer:
                self._sock.send_end()

    # closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._sock.watch(None)
        if not self._buffer:
            self._lost += 1
            self._loop.call_soon(self._end, None)

    def abort(self) -> None:
        """Close at once, without the buffered data. The peer sees the end of data or a reset, at
        random."""
        self._resets = True
        self._lose(None)

    def _fail(self, error: Exception, message: str) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error})
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._buffer.clear()
        self._buffered = 0
        self._closing = True
        self._sock.watch(None)
        self._lost += 1
        self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close(reset=self._resets and self._sock.toss())
