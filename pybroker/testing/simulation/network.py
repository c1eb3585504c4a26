"""The simulated network: one host per machine, connections between hosts, and their faults.
Connections can be refused, delayed, closed, reset or left half-open, as real ones."""

from __future__ import annotations

import asyncio
import errno
import heapq
import itertools
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.loop import ProcessLoop, Sockets
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.tcp import ConnectedSocket, ListeningSocket
from pybroker.testing.simulation.transport import StreamTransport

WINDOW_BYTES: Final = 128 * 1024
"""The maximum number of bytes in one direction of a connection that are in transit or that the
receiver has not read."""
_PORTS: Final = range(32_768, 61_000)
_DESCRIPTOR_FIRST: Final = 3
_HERE: Final = ("localhost", "127.0.0.1")
_EVERYWHERE: Final = ("", "0.0.0.0")


class Host:
    """The network of one simulated machine, as its event loops see it."""

    def __init__(self, network: Network, machine: Machine, address: str) -> None:
        self.machine = machine
        self.address = address
        self._network = network
        self._by_port: dict[int, ListeningSocket] = {}
        self._by_descriptor: dict[int, ListeningSocket] = {}
        self._connected: dict[ConnectedSocket, None] = {}
        self._free: list[int] = []
        self._descriptors = itertools.count(_DESCRIPTOR_FIRST)
        self._ports = itertools.cycle(_PORTS)
        machine.on_stop.append(self._stopped)

    @property
    def loop(self) -> ProcessLoop:
        """Return the event loop of the machine's present process."""
        if self.machine.loop is None:
            raise RuntimeError(f"no process runs on {self.machine.name}")
        return self.machine.loop

    @property
    def connected(self) -> list[ConnectedSocket]:
        """Return the machine's connected sockets, oldest first."""
        return [*self._connected]

    # interface for loops

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect a new socket, and return the transport and the protocol. Waits while the link is
        cut. Raises OSError."""
        loop = self._running_loop()
        target = self._network.find(host, self)
        if self._network.takes_twice(self, target):
            lost = self._network.pair(self, target, port)
            lost.is_lost_on_connect = True
            lost.connect(None)
            if lost.toss():
                await asyncio.sleep(0.01)
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        sock = self._network.pair(self, target, port)
        sock.open()
        established = loop.create_future()
        sock.connect(established)
        try:
            await established
        except BaseException:
            sock.close()
            raise
        return await _transport(loop, sock, factory)

    async def adopt(
        self, factory: Callable[[], asyncio.BaseProtocol], accepted: socket.socket
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await _transport(self._running_loop(), cast("ConnectedSocket", accepted), factory)

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever a connection waits to be accepted at the listening socket with
        this descriptor. Raises OSError if no listening socket has this descriptor."""
        listening = self._by_descriptor.get(descriptor)
        if listening is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        listening.watch(callback)

    def unwatch(self, descriptor: int) -> bool:
        listening = self._by_descriptor.get(descriptor)
        if listening is not None:
            listening.watch(None)
        return listening is not None

    def _running_loop(self) -> ProcessLoop:
        """Return the event loop of the machine's present process. Raises OSError if the caller
        belongs to an earlier, killed process."""
        running = asyncio.get_running_loop()
        if running is not self.machine.loop:
            raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
        return self.loop

    # interface for sockets

    def listening(self, port: int) -> ListeningSocket | None:
        found = self._by_port.get(port)
        return found if found is not None and found.is_listening else None

    def take_descriptor(self) -> int:
        """Return the lowest free descriptor number of the machine."""
        return heapq.heappop(self._free) if self._free else next(self._descriptors)

    def keep(self, sock: ConnectedSocket) -> None:
        self._connected[sock] = None

    def forget_connected(self, sock: ConnectedSocket) -> None:
        self._connected.pop(sock, None)
        if sock.fileno() >= 0:
            heapq.heappush(self._free, sock.fileno())

    def forget_listening(self, sock: ListeningSocket) -> None:
        self._by_port.pop(sock.port, None)
        self._by_descriptor.pop(sock.fileno(), None)
        heapq.heappush(self._free, sock.fileno())

    # interface for the network

    def bind(self, port: int) -> ListeningSocket:
        port = port or self.take_port()
        if port in self._by_port:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        bound = ListeningSocket(self, port)
        self._by_port[port] = self._by_descriptor[bound.fileno()] = bound
        return bound

    def take_port(self) -> int:
        return next(self._ports)

    def _stopped(self, is_heard: bool) -> None:
        """Close the sockets of the ended process. With `is_heard` the peers are notified, as by a
        kernel. Without it no peer is notified, because the machine has lost power."""
        for sock in self.connected:
            if is_heard:
                sock.close(reset=sock.toss())
            else:
                sock.vanish()
        for listening in [*self._by_port.values()]:
            listening.close()


async def _transport(
    loop: ProcessLoop, sock: ConnectedSocket, factory: Callable[[], asyncio.BaseProtocol]
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Return the transport of a socket, and the protocol that `factory` makes. As in asyncio, the
    protocol gets the transport before the caller does."""
    protocol = factory()
    transport = StreamTransport(loop, sock, protocol)
    try:
        await asyncio.sleep(0)
    except BaseException:
        transport.close()
        raise
    return transport, protocol


class Network:
    """All simulated hosts and their connections, by machine names."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.environment = links.environment
        self.splits = 0.1
        """The share of writes whose bytes arrive in several parts."""
        self.doubles = 0.0
        """The share of connection attempts that are accepted twice: see `double_next`."""
        self.window_bytes = WINDOW_BYTES
        """The value that replaces `WINDOW_BYTES` for connections that are opened from now on."""
        self.cut_after: dict[tuple[str, str], int] = {}
        self._double_next: Counter[tuple[str, str]] = Counter()
        self._hosts: dict[str, Host] = {}
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._resets = self.environment.rng("network resets")
        self._doubles = self.environment.rng("network doubles")

    # hosts

    def sockets(self, machine: Machine) -> Sockets:
        """Return the network operations of the machine, for `Machine.start`."""
        return self.host(machine)

    def host(self, machine: Machine) -> Host:
        found = self._hosts.get(machine.name)
        if found is None:
            address = f"10.0.0.{len(self._hosts) + 1}"
            found = self._hosts[machine.name] = Host(self, machine, address)
        return found

    def listen(self, machine: Machine, host: str, port: int) -> socket.socket:
        """Return a listening socket at the port; `port` 0 means any free port. The socket is closed
        when the machine's present process ends. Raises OSError like bind."""
        here = self.host(machine)
        if host not in (*_EVERYWHERE, *_HERE, machine.name, here.address):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        return cast("socket.socket", here.bind(port))

    def find(self, name: str, seen_from: Host) -> Host:
        """Return the host with this name or address. A local name, such as localhost, gives
        `seen_from`. Raises socket.gaierror."""
        if name in _HERE or name in _EVERYWHERE:
            return seen_from
        for host in self._hosts.values():
            if name in (host.machine.name, host.address):
                return host
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def pair(self, source: Host, target: Host, port: int) -> ConnectedSocket:
        """Create the two sockets of a new connection. Return the socket of `source`."""
        names = (source.machine.name, target.machine.name)
        self._pairs[names] += 1
        stream = f"connection {names[0]} {names[1]} {self._pairs[names]}"
        near = ConnectedSocket(
            self, source, source.take_port(), self.environment.rng(f"{stream} out")
        )
        far = ConnectedSocket(self, target, port, self.environment.rng(f"{stream} back"))
        near.join(far)
        far.join(near)
        source.keep(near)
        return near

    # faults

    def reset(self, first: str, second: str, *, one: bool = False) -> int:
        """Reset all connections between two machines. With `one`, reset only a random one of them.
        Data in transit is lost. Return the number of reset connections."""
        host = self._hosts.get(first)
        found = [] if host is None else self._between(host, second)
        if one and found:
            found = [self._resets.choice(found)]
        for sock in found:
            sock.lose()
            sock.peer.lose()
        return len(found)

    def _between(self, host: Host, other: str) -> list[ConnectedSocket]:
        found: dict[ConnectedSocket, None] = {}
        for sock in host.connected:
            is_other = sock.peer.host.machine.name == other and sock.peer not in found
            if is_other and sock.error is None:
                found[sock] = None
        return [*found]

    def reset_after(self, source: str, target: str, length: int) -> None:
        """When `length` more bytes from `source` have arrived at `target`, on any connections,
        reset the connection of the last byte."""
        self.cut_after[source, target] = length

    def left_until_cut(self, direction: tuple[str, str], length: int) -> int | None:
        """Record that `length` more bytes are about to arrive in this direction. If `reset_after`
        breaks the connection within these bytes, return how many of these bytes still arrive;
        otherwise None."""
        left = self.cut_after.get(direction)
        if left is None:
            return None
        if length < left:
            self.cut_after[direction] = left - length
            return None
        del self.cut_after[direction]
        return left

    def mend(self) -> None:
        """Cancel all faults of `reset_after` and `double_next` that have not happened yet. Set
        `doubles`, the share of connections that are accepted twice, to 0."""
        self.cut_after.clear()
        self._double_next.clear()
        self.doubles = 0.0

    def double_next(self, source: str, target: str) -> None:
        """Change the next connect call of `source`: `target` accepts a connection that `source` has
        already dropped. At random, the call then fails, or succeeds with a second connection."""
        self._double_next[source, target] += 1

    def takes_twice(self, source: Host, target: Host) -> bool:
        names = (source.machine.name, target.machine.name)
        if self._double_next[names]:
            self._double_next[names] -= 1
            return True
        return self.doubles > 0 and self._doubles.random() < self.doubles
