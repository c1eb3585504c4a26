"""A TCP relay with faults: it can cut the link, refuse or reset connections, and delay data.

A cut link holds back data, like an unplugged cable. But new connections are accepted, and stay
silent.
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
"""The peer name in a fault that affects every connection."""
_CHUNK_BYTES: Final = 65_536
_CONNECT_SECONDS_MAX: Final = 5.0
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """The direction in which bytes flow through a relay."""

    TO_TARGET = "to the target"
    FROM_TARGET = "from the target"


BOTH: Final = frozenset(Direction)

Tap = Callable[[Direction, bytes], bool]
"""A function that is called with the direction and the bytes of each piece of data on one
connection. If it returns False, the relay resets the connection instead of forwarding the bytes."""


@dataclass(eq=False, slots=True)
class _Connection:
    port: int
    """The port from which the peer connects to the relay."""
    writers: tuple[asyncio.StreamWriter, ...]
    tap: Tap | None = None
    peer: str | None = None
    """The name of the peer. It is looked up only when a fault affects a single peer; None until
    then."""

    def close(self) -> None:
        """Close both sides of the connection, after all written data is sent."""
        for writer in self.writers:
            writer.close()

    def reset(self) -> None:
        """Reset both sides of the connection at once. Data in transit is lost."""
        for writer in self.writers:
            opened = writer.get_extra_info("socket")
            if opened is not None and not writer.transport.is_closing():
                with contextlib.suppress(OSError):
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()


class Relay:
    """A proxy that forwards all data to the target, from `start` to `close`.

    `peer_of` returns the name of the peer that connects from a port, and may be slow: the relay
    calls `peer_of` at most once per connection.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        port: int = 0,
        peer_of: Callable[[int], str] = lambda port: ANYBODY,
    ) -> None:
        self.port = port
        self._target = target
        self._peer_of = peer_of
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
        """Start to listen on `port`. Raises OSError if the port is in use."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and close all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        await cancel_and_wait(*self._tasks)

    # faults of the link

    def cut(self, peer: str = ANYBODY, directions: frozenset[Direction] = BOTH) -> None:
        """Hold back the data of this peer in these directions until `heal`. Connections stay
        open."""
        for direction in directions:
            self._silent[direction].add(peer)

    def refuse(self, peer: str = ANYBODY) -> None:
        """Reset all existing and new connections of this peer until `heal`."""
        self._refused.add(peer)
        for connection in self._connections:
            if self._concerns(self._refused, connection):
                connection.reset()

    def reset(self, peer: str = ANYBODY) -> None:
        """Reset the existing connections of this peer. New connections are accepted."""
        for connection in list(self._connections):
            if self._concerns({peer}, connection):
                connection.reset()

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Delay each piece of data (at most 64 KiB) by `seconds` plus a random time of up to
        `jitter` seconds. The data of a connection stays in order."""
        self._delay_s, self._jitter_s = seconds, jitter

    def tap(self, make: Callable[[], Tap] | None) -> None:
        """Reset the existing connections, and pass all data of each new one through a tap that
        `make` returns. With `make` None, new connections get no tap."""
        self._make_tap = make
        self.reset()

    def heal(self, peer: str = ANYBODY) -> None:
        """End the faults set for this peer. Without an argument, end all faults."""
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
        if not peers or ANYBODY in peers:
            return bool(peers)
        if connection.peer is None:
            connection.peer = self._peer_of(connection.port)
        return connection.peer in peers

    async def _passable(self, connection: _Connection, direction: Direction) -> None:
        while self._concerns(self._silent[direction], connection):
            await self._changed.wait()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        _, port = writer.get_extra_info("peername") or ("", 0)  # None: the peer is gone already
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
            pass  # the target does not listen: the peer's connection is reset below
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
        """Forward data and the end of the data from `reader` to `writer`. A cut holds back the data
        and the end of the data."""
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
                # The reader of the broken side reports it, as soon as that direction is open.
                return
