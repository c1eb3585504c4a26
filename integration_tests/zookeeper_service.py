"""A real ZooKeeper behind relays that can be shut, for the contract tests of the coordination
service and for other tests.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from integration_tests.process import free_port
from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper.connect_string import parse_connect_string
from pybroker.coordinator.zookeeper.handshake import SessionKey, close_session
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from unit_tests.coordinator.coord_contract import Client
from unit_tests.patience import PATIENCE_S

_CHROOTS: Final = itertools.count()
_SESSION_MS: Final = 6000


class Gate:
    """A TCP relay in front of the server. While it is shut, it refuses new connections and has
    reset existing ones.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = free_port()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    async def shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, other}
        await asyncio.gather(_copy(reader, other), _copy(other_reader, writer))
        self._writers -= {writer, other}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


class RealService:
    """A real server for the contract tests: every service has its own chroot, every client its own
    gate.
    """

    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self._server = server
        self._chroot = f"/contract/{next(_CHROOTS)}"
        self._clients: dict[KazooCoord, Gate] = {}

    async def client(self) -> KazooCoord:
        gate = Gate(self._server.port)
        await gate.open()
        coord = KazooCoord(
            f"127.0.0.1:{gate.port}{self._chroot}",
            clock=SystemClock(),
            session_timeout_ms=_SESSION_MS,
        )
        self._clients[coord] = gate
        await coord.start(make_chroot=True)
        return coord

    async def expire(self, client: Client) -> None:
        assert isinstance(client, KazooCoord)
        assert client.session_key is not None
        assert await expire(self._server, client.session_key)

    async def break_connection(self, client: Client) -> None:
        assert isinstance(client, KazooCoord)
        await self._clients[client].shut()

    async def mend_connection(self, client: Client) -> None:
        assert isinstance(client, KazooCoord)
        await self._clients[client].open()

    async def close(self) -> None:
        for coord, gate in self._clients.items():
            await coord.close()
            await gate.shut()


async def expire(server: EmbeddedZooKeeper, key: SessionKey) -> bool:
    """End a session as the server does at a timeout: a second client takes the session over and
    closes it.
    """
    hosts = parse_connect_string(server.connect).hosts
    return await close_session(hosts, key, timeout_s=PATIENCE_S)
