"""A TCP relay whose link can fail: go silent in one direction or both, refuse, break, be slow and
uneven, end where a tap says so, heal.

Silence is that of a cable that was pulled: nothing passes, nobody is told, and after healing TCP
delivers what was sent meanwhile, as it would by sending it again. The one difference: a new
connection to a silent relay is accepted (by our kernel) and then hears nothing.

Runs in one event loop and knows no protocol. `proxy.py` is the same for blocking code.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pybroker.background import cancel_and_wait

ANYBODY: Final = ""
"""The peer of a rule that holds for every connection."""
_CHUNK_BYTES: Final = 65_536
_CONNECT_SECONDS_MAX: Final = 5.0
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Where bytes go."""

    TO_TARGET = "to the target"
    FROM_TARGET = "from the target"


BOTH: Final = frozenset(Direction)

Tap = Callable[[Direction, bytes], bool]
"""Sees every piece of one connection before it is passed on; False: the connection is broken
instead."""


@dataclass(eq=False, slots=True)
class _Connection:
    port: int
    """The peer's."""
    writers: tuple[asyncio.StreamWriter, ...]
    tap: Tap | None = None
    peer: str | None = None
    """None until a rule about a peer asks for it."""

    def close(self) -> None:
        """End it; what was written still arrives."""
        for writer in self.writers:
            writer.close()

    def reset(self) -> None:
        """End it in a way that both sides notice at once."""
        for writer in self.writers:
            opened = writer.get_extra_info("socket")
            if opened is not None and not writer.transport.is_closing():
                with contextlib.suppress(OSError):
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()


class Relay:
    """Listens between `start` and `close` and passes everything on to the target.

    `who` names the peer of an accepted connection by its port; rules may be for one peer only. It
    may take long, as the kernel lists the connections of the whole machine: it is asked once a
    connection, and only where there is a rule about a peer.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        port: int = 0,
        who: Callable[[int], str] = lambda port: ANYBODY,
    ) -> None:
        self.port = port
        self._target = target
        self._who = who
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: dict[Direction, set[str]] = {direction: set() for direction in Direction}
        self._refused: set[str] = set()
        self._delay_s = 0.0
        self._jitter_s = 0.0
        self._dice = random.Random(0)
        self._make_tap: Callable[[], Tap] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """`port` is known afterwards. Raises OSError if the port is taken."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None:
            self._server.close()
        await cancel_and_wait(*self._tasks)

    # what happens to the link

    def cut(self, peer: str = ANYBODY, directions: frozenset[Direction] = BOTH) -> None:
        """Let nothing pass any more, in silence."""
        for direction in directions:
            self._silent[direction].add(peer)

    def refuse(self, peer: str = ANYBODY) -> None:
        """Break the connections, and every new one at once."""
        self._refused.add(peer)
        for connection in self._connections:
            if self._concerns(self._refused, connection):
                connection.reset()

    def reset(self, peer: str = ANYBODY) -> None:
        """Break the connections that there are; new ones may come."""
        for connection in list(self._connections):
            if self._concerns({peer}, connection):
                connection.reset()

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Hold every piece of up to 64 KiB for so long before it is passed on, and for a random
        part of `jitter` seconds more. Pieces of one connection stay in order."""
        self._delay_s, self._jitter_s = seconds, jitter

    def tap(self, make: Callable[[], Tap] | None) -> None:
        """Break the connections that there are; each new one has a tap of its own from its first
        byte on."""
        self._make_tap = make
        self.reset()

    def heal(self, peer: str = ANYBODY) -> None:
        """End what was done to this peer, or everything."""
        if peer == ANYBODY:
            for silent in self._silent.values():
                silent.clear()
            self._refused.clear()
            self._delay_s = self._jitter_s = 0.0
            self._make_tap = None
            for connection in self._connections:
                connection.tap = None
        else:
            for silent in self._silent.values():
                silent.discard(peer)
            self._refused.discard(peer)
        self._changed.set()
        self._changed = asyncio.Event()

    # private

    def _concerns(self, peers: Collection[str], connection: _Connection) -> bool:
        """Whether a rule about these peers holds for the connection."""
        if not peers or ANYBODY in peers:
            return bool(peers)
        if connection.peer is None:
            connection.peer = self._who(connection.port)
        return connection.peer in peers

    async def _passable(self, connection: _Connection, direction: Direction) -> None:
        while self._concerns(self._silent[direction], connection):
            await self._changed.wait()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        _, port = writer.get_extra_info("peername") or ("", 0)  # None: it has gone already
        connection = _Connection(port, (writer,))
        self._connections.add(connection)
        ended_well = False
        try:
            if self._concerns(self._refused, connection):
                return
            if self._make_tap is not None:
                connection.tap = self._make_tap()
            await self._passable(connection, Direction.TO_TARGET)
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                far_reader, far_writer = await asyncio.open_connection(*self._target)
            connection.writers = (writer, far_writer)
            await asyncio.gather(
                self._pump(connection, Direction.TO_TARGET, reader, far_writer),
                self._pump(connection, Direction.FROM_TARGET, far_reader, writer),
            )
            ended_well = True
        except (OSError, TimeoutError):
            pass  # the target does not listen: our side of it is reset below
        except asyncio.CancelledError:
            pass  # by `close`; asyncio's own callback would print it as an error
        finally:
            self._connections.discard(connection)
            (connection.close if ended_well else connection.reset)()

    async def _pump(
        self,
        connection: _Connection,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass on until one side ends; its end passes only where bytes would."""
        while True:
            broken = False
            data = b""
            try:
                data = await reader.read(_CHUNK_BYTES)
            except OSError:
                broken = True
            await self._passable(connection, direction)
            if self._delay_s or self._jitter_s:
                await asyncio.sleep(self._delay_s + self._dice.uniform(0, self._jitter_s))
                await self._passable(connection, direction)
            if connection.tap is not None and data and not connection.tap(direction, data):
                broken = True
            if broken:
                connection.reset()
                return
            try:
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
            except (OSError, RuntimeError):
                # Its reader tells of the broken side, as soon as that direction is open.
                return
