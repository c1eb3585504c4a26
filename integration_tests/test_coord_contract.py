"""The contract of the coordination service against a real ZooKeeper, and what only a real one
shows: expiry by a second client, the session of a killed process, a silent server."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper.connect_string import parse_connect_string
from pybroker.coordinator.zookeeper.embedded import EmbeddedZooKeeper
from pybroker.coordinator.zookeeper.handshake import SessionKey, close_session
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.coordinator.zookeeper.session_store import FileSessionStore
from pybroker.errors import SessionExpired, StartupError
from pybroker.ports import SessionEvent
from unit_tests.coordinator.coord_contract import (
    PATIENCE_S,
    Client,
    CoordContract,
    Heard,
    refused,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHROOTS = itertools.count()
_SESSION_MS = 6000


class Gate:
    """A TCP relay in front of the server; while it is shut it refuses and breaks connections."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

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
    """The contract's view of a real server: every service has a chroot, every client a gate."""

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
        await coord.start()
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
    """End a session as the server would: a second client takes it over and closes it."""
    hosts = parse_connect_string(server.connect).hosts
    return await close_session(hosts, key, timeout_s=PATIENCE_S)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedZooKeeper]:
    zookeeper = EmbeddedZooKeeper(str(tmp_path_factory.mktemp("zookeeper")))
    await zookeeper.start()
    yield zookeeper
    await zookeeper.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def service(server: EmbeddedZooKeeper) -> AsyncIterator[RealService]:
    real = RealService(server)
    yield real
    await real.close()


class TestKazooCoord(CoordContract):
    """The contract, with a real server."""


async def test_closed_client_has_no_session(service: RealService) -> None:
    coord = await service.client()
    await coord.close()
    await coord.close()
    assert coord.session_id == 0
    await refused(SessionExpired, coord.get("/"))


async def test_request_of_an_expired_session_has_no_effect_in_the_next(
    service: RealService,
) -> None:
    coord = await service.client()
    heard = Heard()
    coord.add_listener(heard)
    await service.break_connection(coord)
    await heard.next(SessionEvent.SUSPENDED)
    await service.expire(coord)
    late = asyncio.gather(
        *(coord.create(f"/late{number}", ephemeral=True) for number in range(5)),
        return_exceptions=True,
    )
    await service.mend_connection(coord)
    await heard.next(SessionEvent.CONNECTED)
    assert all(isinstance(outcome, Exception) for outcome in await late)
    assert await coord.children("/") == []


async def test_server_that_grants_less_is_believed(server: EmbeddedZooKeeper) -> None:
    coord = KazooCoord(server.connect, clock=SystemClock(), session_timeout_ms=90_000)
    await coord.start()
    assert coord.session_timeout_ms == 60_000
    await coord.close()


async def test_silent_server_is_noticed(server: EmbeddedZooKeeper) -> None:
    """A stopped server keeps its connections open; only the missing answers tell."""
    coord = KazooCoord(server.connect, clock=SystemClock(), session_timeout_ms=1000)
    heard = Heard()
    coord.add_listener(heard)
    await coord.start()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await heard.next(SessionEvent.SUSPENDED)
        assert coord.silence() > 0.5
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await heard.next(SessionEvent.RECONNECTED, SessionEvent.EXPIRED)
    await coord.close()


@pytest.mark.parametrize(
    ("listens", "answer"), [(False, b""), (True, b""), (True, b"HTTP/1.1 400 Bad Request\r\n\r\n")]
)
async def test_start_without_a_zookeeper_says_what_to_check(listens: bool, answer: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        if answer:
            writer.close()

    other = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    if not listens:
        other.close()
    coord = KazooCoord(f"127.0.0.1:{port}", clock=SystemClock())
    with pytest.raises(StartupError) as failed:
        await coord.start(timeout_s=0.5)
    other.close()
    assert str(failed.value) == (
        f"ZooKeeper does not answer at 127.0.0.1:{port} within 0.5 s;"
        " check zookeeper.connect (is it running?)"
    )


async def test_unknown_host_is_named() -> None:
    coord = KazooCoord("no-such-host.invalid:2181", clock=SystemClock())
    with pytest.raises(StartupError, match=r"no address is known for no-such-host\.invalid"):
        await coord.start(timeout_s=0.5)


_VICTIM = """
import asyncio, sys
from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.coordinator.zookeeper.session_store import FileSessionStore

async def main():
    store = FileSessionStore(sys.argv[2])
    coord = KazooCoord(sys.argv[1], clock=SystemClock(), session_timeout_ms=60000, store=store)
    await coord.start()
    await coord.create("/victim", ephemeral=True)
    print(coord.session_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_session_of_a_killed_process_ends_when_the_next_starts(
    server: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _VICTIM, server.connect, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert victim.stdout is not None
    session = int(await victim.stdout.readline())
    victim.kill()
    await victim.wait()
    key_file = tmp_path / "zookeeper.session"
    assert key_file.stat().st_mode & 0o777 == 0o600
    coord = KazooCoord(server.connect, clock=SystemClock(), store=FileSessionStore(str(tmp_path)))
    await coord.start()
    assert coord.earlier_session_ids == {session}
    assert await coord.exists("/victim") is None
    await coord.close()
    assert json.loads(key_file.read_text())["sessions"] == []


async def test_port_of_the_gate_is_free_while_it_is_shut() -> None:
    """The helper itself: a shut gate refuses."""
    gate = Gate(1)
    await gate.open()
    await gate.shut()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", gate.port)).close()
