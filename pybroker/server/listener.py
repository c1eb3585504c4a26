"""The listeners of a broker: their sockets, connections and limits. The broker calls `bind` first.
If a port is in use, the start fails before it has changed anything. Connections are accepted only
after `open`."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import resource
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pybroker.background import cancel_and_wait
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StartupError
from pybroker.metrics import Metrics
from pybroker.ports import Clock
from pybroker.server.acceptor import ANY_DESCRIPTOR, Acceptor, CreationRate
from pybroker.server.connection import Connection, FrameHandler
from pybroker.server.limits import ServerLimits
from pybroker.server.refusals import RefusalLog
from pybroker.server.request_memory import RequestMemory

log = logging.getLogger(__name__)

_REAPER_INTERVAL_S = 10.0
_REST_S_MAX = 3 * _REAPER_INTERVAL_S
"""A connection can begin to rest only if it has been idle for at most this time (s). So a
connection that began to rest at a time T became idle no earlier than T minus this time."""
_KEPT_DESCRIPTORS_MAX = 4096
_SYSTEMS_CHOICE = -1
"""With this value of a buffer size option, the operating system chooses and adapts the size."""


@dataclass(frozen=True, slots=True)
class Bind:
    """The address of a listener. An empty `host` means every interface, port 0 any free port."""

    name: str
    host: str
    port: int


def bind(listener: Bind) -> socket.socket:
    """Return a bound socket that does not listen yet. Raise StartupError if the port is in use, or
    if the address does not belong to this machine."""
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
                f"listener {listener.name} cannot use {where}: another process has the port; stop "
                "that process or choose another port (--port, or listeners in the configuration)"
            ) from error
        raise StartupError(
            f"listener {listener.name} cannot use {where}: {error.strerror or error}; "
            "correct the option listeners in the configuration"
        ) from error
    except OverflowError as error:
        opened.close()
        raise StartupError(
            f"listener {listener.name}: port {listener.port}: expected a port from 0 to 65535"
        ) from error
    opened.setblocking(False)
    return opened


def _descriptors_for_connections() -> int:
    """Return a number N: every file descriptor of a connection must be less than N."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return ANY_DESCRIPTOR
    return limit - min(limit // 4, _KEPT_DESCRIPTORS_MAX)


def _backlog(config: BrokerConfig) -> int:
    """Return how many connections of a listener may wait to be accepted. This is
    socket.listen.backlog.size if the option is set, otherwise the system's maximum."""
    if "socket.listen.backlog.size" in config.given:
        return config.socket_listen_backlog_size
    return socket.SOMAXCONN


class Server:
    """Accepts and owns all connections of one broker, on the event loop that calls `open`."""

    def __init__(
        self,
        *,
        handle: FrameHandler,
        config: BrokerConfig,
        clock: Clock,
        metrics: Metrics | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self._metrics = Metrics() if metrics is None else metrics
        self._handle = handle
        self._config = config
        self._limits = limits or ServerLimits()
        self._clock = clock
        self._acceptors: list[Acceptor] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._rate = CreationRate(config.max_connection_creation_rate, clock)
        self._memory = RequestMemory(config.queued_max_request_bytes)
        self._refusals = RefusalLog(clock)
        self._connections: dict[Connection, None] = {}
        self._restless: dict[Connection, None] = {}
        self._resting: dict[Connection, float] = {}
        """Connection that rests -> when it began to rest (monotonic s). All other connections are
        in `_restless`, and `reap` looks at each of those. `_connections`, `_restless` and
        `_resting` are dicts, not sets, because the order of a set would differ between two runs of
        the same simulation."""
        self._per_ip: Counter[str] = Counter()
        self._unsent_bytes = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._reaper: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connections_by_listener(self) -> Counter[str]:
        """Return listener name -> number of open connections."""
        return Counter(connection.peer.listener for connection in self._connections)

    @property
    def unsent_bytes(self) -> int:
        """The size (bytes) of all responses that wait because their peers read too slowly."""
        return self._unsent_bytes

    async def open(self, sockets: Sequence[tuple[str, socket.socket]]) -> None:
        """Accept connections on each of `sockets`: (listener name, bound socket)."""
        loop = asyncio.get_running_loop()
        for name, listening in sockets:
            self._set_socket_options(listening)
            acceptor = Acceptor(
                name,
                listening,
                clock=self._clock,
                delay_s=partial(self._delay_s, name),
                adopt=partial(self._adopt, name),
                descriptors_max=_descriptors_for_connections,
            )
            self._acceptors.append(acceptor)
            acceptor.open(_backlog(self._config))
        self._reaper = loop.call_later(_REAPER_INTERVAL_S, self.reap)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use the options in `config` for new connections."""
        self._config = config
        self._rate.set(config.max_connection_creation_rate)
        if len(self._connections) < config.max_connections:
            for acceptor in self._acceptors:
                acceptor.place_free()

    async def close(self, deadline_s: float) -> None:
        """Stop accepting, and close each connection after its current response. After `deadline_s`
        seconds, close the remaining connections at once. Idempotent."""
        if self._reaper is not None:
            self._reaper.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        await cancel_and_wait(*self._opening)
        for connection in list(self._connections):
            connection.drain()
        try:
            await asyncio.wait_for(self._empty.wait(), deadline_s)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    def _delay_s(self, listener: str) -> float | None:
        """Return how long (s) the listener's next connection has to wait. None means that it has to
        wait until another connection closes (max.connections)."""
        config = self._config
        present = len(self._connections) + len(self._opening)
        if present >= config.max_connections and listener != config.protected_listener:
            return None
        return self._rate.delay_s()

    def _adopt(self, listener: str, connected: socket.socket) -> None:
        self._rate.take()
        task = asyncio.get_running_loop().create_task(self._open_connection(listener, connected))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_connection(self, listener: str, connected: socket.socket) -> None:
        def connection() -> Connection:
            return Connection(
                listener=listener,
                handle=self._handle,
                config=self._config,
                limits=self._limits,
                clock=self._clock,
                memory=self._memory,
                refusals=self._refusals,
                on_open=self._admit,
                on_close=self._forget,
                on_unsent=self._count_unsent,
                on_wake=self._woke,
            )

        try:
            await asyncio.get_running_loop().connect_accepted_socket(connection, connected)
        except OSError as error:
            connected.close()
            self._refusals.log(logging.WARNING, "connection not opened", listener, error)
        except asyncio.CancelledError:
            connected.close()
            raise

    def _admit(self, connection: Connection) -> str | None:
        """Count a new connection. Return None if it is accepted. If max.connections.per.ip refuses
        it, return the reason."""
        host, listener = connection.peer.host, connection.peer.listener
        self._connections[connection] = None
        self._restless[connection] = None
        self._metrics.accepted[listener] = self._metrics.accepted.get(listener, 0) + 1
        self._empty.clear()
        self._per_ip[host] += 1
        config = self._config
        per_ip = config.connections_per_ip_overrides.get(host, config.max_connections_per_ip)
        if self._per_ip[host] > per_ip:
            return f"max.connections.per.ip={per_ip} is reached for {host}"
        if len(self._connections) > config.max_connections:
            self._make_place(config.protected_listener)
        return None

    def _make_place(self, protected: str | None) -> None:
        """Close the connection that has been silent for longest, because max.connections is
        exceeded. Connections on the listener `protected` are not closed."""
        others = [each for each in self._connections if each.peer.listener != protected]
        if others:
            longest_silent = min(others, key=lambda each: each.last_active)
            reason = f"max.connections={self._config.max_connections} is reached"
            self._refusals.log(logging.WARNING, "connection closed", longest_silent.peer, reason)
            longest_silent.close_reason = "limit"
            longest_silent.abort()

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._restless.pop(connection, None)
        self._resting.pop(connection, None)
        self._metrics.connection_closed(connection.close_reason)
        host = connection.peer.host
        self._per_ip[host] -= 1
        if self._per_ip[host] <= 0:
            del self._per_ip[host]
        if not self._connections:
            self._empty.set()
        if len(self._connections) < self._config.max_connections:
            for acceptor in self._acceptors:
                acceptor.place_free()

    def _count_unsent(self, change: int) -> None:
        self._unsent_bytes += change

    def reap(self) -> None:
        """Close connections that are idle for too long or send a request too slowly, and shrink the
        receive buffers of other idle connections. Schedules the next call."""
        now = self._clock.monotonic()
        idle_ms_max = self._config.connections_max_idle_ms
        idle_since = now - idle_ms_max / 1000 if idle_ms_max >= 0 else -math.inf
        for connection in [*self._restless, *self._due(idle_since)]:
            idle_s = connection.idle_s(now)
            if connection.is_too_slow(now):
                reason = (
                    "its request took longer to arrive than pybroker.request.read.timeout.ms allows"
                )
                self._refusals.log(logging.WARNING, "connection closed", connection.peer, reason)
                connection.close_reason = "slow"
                connection.abort()
            elif idle_s * 1000 > idle_ms_max >= 0:
                log.info("idle connection closed peer=%s idle_s=%.0f", connection.peer, idle_s)
                connection.close_reason = "idle"
                connection.abort()  # close would wait forever for a peer that does not read
            elif idle_s > _REAPER_INTERVAL_S and connection not in self._resting:
                connection.give_back_memory()
                if idle_s <= _REST_S_MAX and connection.rest():
                    del self._restless[connection]
                    self._resting[connection] = now
        self._reaper = asyncio.get_running_loop().call_later(_REAPER_INTERVAL_S, self.reap)

    def _due(self, idle_since: float) -> Iterator[Connection]:
        """Yield each connection in `_resting`, except those that certainly became idle after
        `idle_since` (monotonic s)."""
        for connection, began in self._resting.items():
            if began - _REST_S_MAX > idle_since:
                break  # the others began later
            yield connection

    def _woke(self, connection: Connection) -> None:
        del self._resting[connection]
        self._restless[connection] = None

    def _set_socket_options(self, listening: socket.socket) -> None:
        """Set options of a listening socket. Each accepted socket inherits these options."""
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # uvloop sets TCP_NODELAY on every connection. asyncio's own loop does so only if the socket
        # names its protocol, and an accepted socket does not. Without it, an answer that follows
        # another waits for the peer's delayed acknowledgement, 40 ms on Linux.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = self._config
        for name, option, size in (
            ("socket.receive.buffer.bytes", socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
            ("socket.send.buffer.bytes", socket.SO_SNDBUF, config.socket_send_buffer_bytes),
        ):
            if name in config.given and size != _SYSTEMS_CHOICE:
                listening.setsockopt(socket.SOL_SOCKET, option, size)
