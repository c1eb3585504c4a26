"""The listeners of a broker: bound sockets, the connections on them, and their limits.

Sockets are bound early (`bind`), so that a used port stops the start before anything is touched,
and accept only from `open` on. `close` stops accepting, lets requests in flight be answered until
its deadline, then cuts what is left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pybroker.errors import StartupError
from pybroker.ports import Clock
from pybroker.server.connection import Connection, FrameHandler
from pybroker.server.limits import ServerLimits

log = logging.getLogger(__name__)

_REAPER_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Bind:
    """What to bind: `host` "" means every interface, `port` 0 means any free port."""

    name: str
    host: str
    port: int


def bind(listener: Bind) -> socket.socket:
    """A bound, not yet listening socket.

    Raises StartupError if the port is taken or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    where = f"{listener.host or '0.0.0.0'}:{listener.port}"
    try:
        opened.bind((listener.host, listener.port))
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"listener {listener.name} cannot use {where}: another process has the port; "
                "stop it or choose another port (--port, or listeners in the configuration)"
            ) from error
        raise StartupError(
            f"listener {listener.name} cannot use {where}: {error.strerror or error}; "
            "change listeners in the configuration"
        ) from error
    except OverflowError as error:
        opened.close()
        raise StartupError(f"listener {listener.name}: {listener.port} is not a port") from error
    opened.setblocking(False)
    return opened


class Server:
    """All connections of one broker. Everything runs on the event loop that calls `open`."""

    def __init__(self, *, handle: FrameHandler, limits: ServerLimits, clock: Clock) -> None:
        self._handle = handle
        self._limits = limits
        self._clock = clock
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._per_ip: Counter[str] = Counter()
        self._unsent_bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._reaper: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def unsent_bytes(self) -> int:
        """What waits in memory for peers that leave more unread than a connection may."""
        return self._unsent_bytes

    async def open(self, sockets: Sequence[tuple[str, socket.socket]]) -> None:
        """Accept on these sockets; the names are those of the listeners."""
        loop = asyncio.get_running_loop()
        for name, listening in sockets:
            self._set_socket_buffers(listening)

            def connection(name: str = name) -> Connection:
                return Connection(
                    listener=name,
                    handle=self._handle,
                    limits=self._limits,
                    clock=self._clock,
                    on_open=self._admit,
                    on_close=self._forget,
                    on_unsent=self._count_unsent,
                )

            self._servers.append(
                await loop.create_server(connection, sock=listening, backlog=self._limits.backlog)
            )
        self._reaper = loop.call_later(_REAPER_INTERVAL_S, self._reap)

    async def close(self, deadline_s: float) -> None:
        """Stop accepting, answer what is in flight, cut the rest after `deadline_s`. Idempotent."""
        if self._reaper is not None:
            self._reaper.cancel()
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            connection.drain()
        try:
            await asyncio.wait_for(self._empty.wait(), deadline_s)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    def _admit(self, connection: Connection) -> str | None:
        """Count a new connection; a reason if a limit refuses it (it is then closed at once)."""
        host = connection.peer.host
        self._connections.add(connection)
        self._empty.clear()
        self._per_ip[host] += 1
        limits = self._limits
        if len(self._connections) > limits.connections_max:
            return f"max.connections={limits.connections_max} is reached"
        per_ip = limits.connections_per_ip_overrides.get(host, limits.connections_per_ip_max)
        if self._per_ip[host] > per_ip:
            return f"max.connections.per.ip={per_ip} is reached for {host}"
        return None

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        host = connection.peer.host
        self._per_ip[host] -= 1
        if self._per_ip[host] <= 0:
            del self._per_ip[host]
        if not self._connections:
            self._empty.set()

    def _count_unsent(self, change: int) -> None:
        self._unsent_bytes += change

    def _reap(self) -> None:
        """Close connections without a request for too long; take memory back from quiet ones."""
        now = self._clock.monotonic()
        for connection in list(self._connections):
            idle_s = now - connection.last_active
            if connection.is_idle and idle_s * 1000 > self._limits.idle_ms_max:
                log.info("connection idle peer=%s idle_s=%.0f", connection.peer, idle_s)
                connection.abort()  # one that leaves answers unread would never be closed
            elif idle_s > _REAPER_INTERVAL_S:
                connection.give_back_memory()
        self._reaper = asyncio.get_running_loop().call_later(_REAPER_INTERVAL_S, self._reap)

    def _set_socket_buffers(self, listening: socket.socket) -> None:
        """Accepted sockets inherit these from the listening one."""
        if self._limits.receive_buffer_bytes != -1:
            listening.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, self._limits.receive_buffer_bytes
            )
        if self._limits.send_buffer_bytes != -1:
            listening.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_bytes
            )
