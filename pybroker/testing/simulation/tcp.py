"""The simulated kernel: sockets, and the packets between the two sockets of a connection.

During a cut, data and FIN wait. The reset that a closing socket sends during a cut is lost, because
a reset is never sent again.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol
from zlib import crc32

from pybroker.testing.simulation.links import Links, Pipe
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine

_RETRY_S: Final = 0.2
_RETRY_S_MAX: Final = 3.0
_TELLING_PIECE_BYTES: Final = 8
"""The maximum size in bytes of the small parts of a split write. A small part ends within a frame's
length field or just after it, which may reveal bugs of the receiver."""


class Sign(enum.Enum):
    """The packets that begin or end a connection. All other packets carry data, or tell the sender
    how much space is free in the receiver's buffer."""

    SYN = "syn"
    SYN_ACK = "syn-ack"
    ACK = "ack"
    FIN = "fin"
    RESET = "reset"


class Owner(Protocol):
    """A socket's view of its host."""

    machine: Machine
    address: str

    @property
    def loop(self) -> ProcessLoop:
        """Return the event loop of the host's present process."""

    def listening(self, port: int) -> ListeningSocket | None: ...

    def take_descriptor(self) -> int: ...

    def keep(self, sock: ConnectedSocket) -> None: ...

    def forget_connected(self, sock: ConnectedSocket) -> None: ...

    def forget_listening(self, sock: ListeningSocket) -> None: ...


class Medium(Protocol):
    """A connection's view of the network."""

    links: Links
    splits: float
    window_bytes: int
    cut_after: dict[tuple[str, str], int]

    def left_until_cut(self, direction: tuple[str, str], length: int) -> int | None: ...


class SocketBase:
    """The base class of simulated sockets. Socket options have no effect."""

    def __init__(self, host: Owner, port: int) -> None:
        self.host = host
        self.port = port
        self._descriptor = -1

    def fileno(self) -> int:
        return self._descriptor

    def setsockopt(self, *_arguments: Any) -> None:
        """Ignore the option."""

    def setblocking(self, _flag: bool) -> None:
        """Do nothing: no simulated socket ever blocks."""

    def getsockname(self) -> tuple[str, int]:
        return self.host.address, self.port


class ListeningSocket(SocketBase):
    """A simulated bound socket, which accepts connections after `listen`."""

    def __init__(self, host: Owner, port: int) -> None:
        super().__init__(host, port)
        self._descriptor = host.take_descriptor()
        self._backlog = -1
        self._waiting: deque[ConnectedSocket] = deque()
        self._reader: Callable[[], object] | None = None
        self._is_called = False
        self.is_closed = False

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._backlog

    @property
    def is_listening(self) -> bool:
        return self._backlog >= 0 and not self.is_closed

    def listen(self, backlog: int) -> None:
        self._backlog = max(1, backlog)

    def accept(self) -> tuple[ConnectedSocket, tuple[str, int]]:
        """Return a waiting connection, and the address of its peer. Raises BlockingIOError if no
        connection waits."""
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        accepted = self._waiting.popleft()
        accepted.open()
        return accepted, accepted.getpeername()

    def close(self) -> None:
        """Close the socket and reset all connections that wait to be accepted. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self.host.forget_listening(self)
            self._descriptor = -1
            while self._waiting:
                self._waiting.popleft().close(reset=True)

    def watch(self, reader: Callable[[], object] | None) -> None:
        self._reader = reader
        self._call()

    def connected(self, socket: ConnectedSocket) -> None:
        """Queue a connection whose handshake is complete, until the application accepts it."""
        self._waiting.append(socket)
        self._call()

    def _call(self) -> None:
        if self._waiting and self._reader is not None and not self._is_called:
            self._is_called = True
            self.host.loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_called = False
        if self._reader is not None and self._waiting:
            self._reader()
            if self._waiting and self._reader is not None and not self._is_called:
                # Time must pass, or the run would hang on a process that does not accept.
                self._is_called = True
                self.host.loop.call_later(0.00005, self._run)


class ConnectedSocket(SocketBase):
    """One of the two sockets of a simulated connection. The socket exists before the handshake is
    complete. The application uses it between `open` and `close`."""

    def __init__(self, network: Medium, host: Owner, port: int, rng: random.Random) -> None:
        super().__init__(host, port)
        self.name = f"{host.machine.name}:{port}"
        self.is_gone = False
        """Whether the socket was closed, or its process or machine has ended."""
        self.error: OSError | None = None
        self.established: asyncio.Future[None] | None = None
        """A future that is done when the handshake is complete. The process that connects awaits
        it."""
        self.is_lost_on_connect = False
        """Whether this socket vanishes, without a packet to the other one, as soon as the handshake
        is complete."""
        self.peer: ConnectedSocket
        self._out: Pipe
        self._network = network
        self._environment = network.links.environment
        self._rng = rng
        self._listening: ListeningSocket | None = None
        """The listening socket that has received the connection attempt; None after the
        handshake."""
        self._received: deque[bytes] = deque()
        self._has_ended = False
        self._end_sent = False
        self._room = network.window_bytes
        self._window = network.window_bytes
        self._taken = 0
        self._reader: Callable[[], object] | None = None
        self._writer: Callable[[], object] | None = None
        self._reader_called = False
        self._is_telling = False
        self._direction = ("", "")
        self._label = ""

    def join(self, peer: ConnectedSocket) -> None:
        """Connect this socket to `peer`, the other socket of the connection. The peer needs its own
        call of `join`."""
        self.peer = peer
        source, target = self.host.machine.name, peer.host.machine.name
        self._out = Pipe(self._network.links, source, target, self._rng, peer.arrive)
        self._direction = (target, source)
        self._label = f"{peer.name}>{self.name}"

    def getpeername(self) -> tuple[str, int]:
        return self.peer.getsockname()

    @property
    def is_connecting(self) -> bool:
        """Return whether a process waits for the handshake of this socket."""
        return self.established is not None and not self.established.done()

    # interface for the application

    def open(self) -> None:
        """Give the socket a file descriptor. Call this when the application begins to use the
        socket."""
        self._descriptor = self.host.take_descriptor()

    def watch(self, reader: Callable[[], object] | None) -> None:
        """Call `reader` whenever the socket has data, an end of data or an error to read. With
        `reader` None, call nothing from now on."""
        self._reader = reader
        self._call_reader()

    def watch_room(self, writer: Callable[[], object]) -> None:
        """Call `writer` once, as soon as the peer has space for more bytes."""
        self._writer = writer
        self._call_writer()

    def send(self, data: bytes) -> int:
        """Send as many bytes of `data` as the peer has space for, and return their number. Raises
        OSError if the connection is lost."""
        if self.error is not None:
            raise self.error
        if self.is_gone or self._end_sent:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        length = len(data)
        if length > self._room:
            length = self._room
            if not length:
                return 0
            data = data[:length]
        self._room -= length
        if length > 1 and self._rng.random() < self._network.splits:
            self._send_split(data)
        else:
            self._out.send(data)
        return length

    def _send_split(self, data: bytes) -> None:
        rng, start = self._rng, 0
        while start < len(data):
            near = rng.random() < 0.5
            least = min(_TELLING_PIECE_BYTES, len(data)) if near else len(data)
            end = start + rng.randint(1, least)
            self._out.send(data[start:end])
            start = end

    def send_end(self) -> None:
        """Send the end of data. Idempotent."""
        if not (self._end_sent or self.is_gone or self.error is not None):
            self._end_sent = True
            self._out.send(Sign.FIN)

    def receive_into(self, buffer: memoryview) -> int:
        """Read data into `buffer`, and return the number of bytes; 0 is the end of data. Raises
        BlockingIOError if no data has arrived. Raises OSError if the connection is lost and all
        received data has been read."""
        received = self._received
        if not received:
            return self._nothing_left()
        room, filled = len(buffer), 0
        while received:
            piece = received.popleft()
            end = filled + len(piece)
            if end > room:
                part = room - filled
                buffer[filled:room] = piece[:part]
                received.appendleft(piece[part:])
                filled = room
                break
            buffer[filled:end] = piece
            filled = end
        self._take(filled)
        return filled

    def receive(self) -> bytes:
        """Return all received data; b"" is the end of data. Raises the errors of `receive_into`."""
        received = self._received
        if not received:
            self._nothing_left()
            return b""
        data = received.popleft() if len(received) == 1 else b"".join(received)
        received.clear()
        self._take(len(data))
        return data

    def _nothing_left(self) -> int:
        if self.error is not None:
            raise self.error
        if not self._has_ended:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return 0

    def _take(self, length: int) -> None:
        """Count `length` bytes that the application has read. Like a real kernel, tell the sender
        about free space only when at least half of the buffer was read."""
        self._taken += length
        if self._taken * 2 >= self._window:
            self._out.send(self._taken)
            self._taken = 0

    def close(self, *, reset: bool = False) -> None:
        """Close this socket at once. When the data in transit has arrived, the peer sees the end of
        the stream, or a reset if `reset` is true or this socket has unread data. Idempotent."""
        if self.is_gone:
            return
        if self.error is None:
            if reset or self._received:
                self._environment.note(f"{self.name} resets {self.peer.name}")
                self._out.send(Sign.RESET)
                self._out.forget()
            else:
                self.send_end()
        self._go()

    def toss(self) -> bool:
        """Return a random bool from this connection's own random stream."""
        return self._rng.random() < 0.5

    def vanish(self) -> None:
        """Remove this socket without any packet, because its machine has lost power. Data in
        transit is lost."""
        self._out.close()
        self._go()
        if self.peer.is_connecting:
            self._reset_peer()  # the peer retries, and is answered once there is power

    def _go(self) -> None:
        self.is_gone = True
        self._reader = self._writer = None
        self._received.clear()
        self.host.forget_connected(self)
        self._descriptor = -1

    # interface for the network

    def connect(self, established: asyncio.Future[None] | None) -> None:
        self.established = established
        self._out.send(Sign.SYN)

    def arrive(self, item: object) -> None:
        """Handle a packet that arrives from the other socket."""
        if type(item) is bytes:
            self._arrive_data(item)
        elif type(item) is int:
            self._room += item
            self._call_writer()
        elif item is Sign.SYN:
            self._answer_connect()
        elif item is Sign.SYN_ACK:
            self._answered()
        elif item is Sign.ACK:
            self._agreed()
        elif item is Sign.RESET:
            self.lose()
        elif not self.is_gone:
            self._environment.note(f"{self._label} end")
            self._has_ended = True
            self._call_reader()

    def _arrive_data(self, piece: bytes) -> None:
        if self.is_gone or self.error is not None:
            self._reset_peer()
            return
        left = None
        if self._network.cut_after:
            left = self._network.left_until_cut(self._direction, len(piece))
            if left is not None:
                piece = piece[:left]
        self._environment.note(f"{self._label} {len(piece)} {crc32(piece):x}")
        if piece:
            self._received.append(piece)
            if self._reader is not None and not self._reader_called:
                self._reader_called = True
                self.host.loop.call_soon(self._run_reader)
        if left is not None:
            self.peer.lose()
            if self._rng.random() < 0.5:
                self._tell_later(self.peer, self)

    def _call_reader(self) -> None:
        readable = self._received or self._has_ended or self.error is not None
        if readable and self._reader is not None and not self._reader_called:
            self._reader_called = True
            self.host.loop.call_soon(self._run_reader)

    def _run_reader(self) -> None:
        self._reader_called = False
        if self._reader is not None:
            self._reader()
            self._call_reader()

    def _call_writer(self) -> None:
        if self._writer is not None and (self._room > 0 or self.error is not None):
            self.host.loop.call_soon(self._writer)
            self._writer = None

    def lose(self) -> None:
        """Handle a reset. Data that was received before can still be read."""
        if self.is_gone or self.error is not None:
            return
        self._environment.note(f"{self._label} reset")
        self._out.close()
        number = errno.EPIPE if self._has_ended else errno.ECONNRESET
        self.error = OSError(number, os.strerror(number))  # creates the subclass for this number
        if self.established is not None and self.is_connecting:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            self.established.set_exception(refused)
        if self._listening is not None:
            self._go()  # the handshake was not complete, so no application uses this socket
        self._call_reader()
        self._call_writer()

    def _reset_peer(self) -> None:
        """Send a reset to the peer, because this socket is closed. While the network between the
        two machines is cut or this machine is down, wait and try again."""
        if not self._is_telling:
            self._is_telling = True
            self._tell(_RETRY_S)

    def _tell(self, wait_s: float) -> None:
        if self.peer.is_gone or self.peer.error is not None:
            return
        if self._can_exchange():
            self._is_telling = False
            self._tell_later(self, self.peer)
        else:
            self._environment.after(wait_s, self._tell, min(2 * wait_s, _RETRY_S_MAX))

    def _tell_later(self, source: ConnectedSocket, target: ConnectedSocket) -> None:
        source_name, target_name = source.host.machine.name, target.host.machine.name
        delay = self._network.links.delay(source_name, target_name)
        self._environment.after(delay.draw(self._rng), target.lose)

    def _can_exchange(self) -> bool:
        """Return whether packets pass between the peer and this machine in both directions."""
        here, there = self.host.machine.name, self.peer.host.machine.name
        links = self._network.links
        return self.host.machine.is_up and links.passes(there, here) and links.passes(here, there)

    # handshake

    def _answer_connect(self, wait_s: float = _RETRY_S) -> None:
        """Answer a connection attempt of the peer. If no answer is possible now, the peer tries
        again after `wait_s` seconds."""
        if self.peer.is_gone:
            return
        reaches = self._network.links.passes(self.peer.host.machine.name, self.host.machine.name)
        listening = self.host.listening(self.port)
        if not reaches or not self.host.machine.is_up or (listening and not listening.has_room):
            self._environment.after(wait_s, self._answer_connect, min(2 * wait_s, _RETRY_S_MAX))
        elif listening is None:
            self._environment.note(f"{self._label} refused")
            self._out.send(Sign.RESET)
            self._out.forget()
            self.is_gone = True
        else:
            self._listening = listening
            self.host.keep(self)
            self._out.send(Sign.SYN_ACK)

    def _answered(self) -> None:
        if self.is_gone:
            self._reset_peer()
            return
        self._out.send(Sign.ACK)
        if self.is_lost_on_connect:
            self._go()
        elif self.established is not None and self.is_connecting:
            self.established.set_result(None)

    def _agreed(self) -> None:
        listening, self._listening = self._listening, None
        if self.is_gone or listening is None:
            return
        self._environment.note(f"{self._label} connected")
        if listening.is_closed:
            self.close(reset=True)
        else:
            listening.connected(self)
