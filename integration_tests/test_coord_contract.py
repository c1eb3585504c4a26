"""Contract tests of the coordination service against a real ZooKeeper, and cases that need a real
server: expiry by a second client, the session of a killed process, a silent server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from integration_tests.apache import session_at
from integration_tests.process import free_port
from integration_tests.zookeeper_service import Gate, RealService
from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.coordinator.zookeeper.session_store import FileSessionStore
from pybroker.errors import SessionExpired, StartupError
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from pybroker.ports import SessionEvent
from unit_tests.coordinator.coord_contract import (
    CoordContract,
    SeenEvents,
    refused,
)
from unit_tests.patience import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    """The contract tests with a real server."""


async def test_a_loop_that_has_stopped_loses_its_session(server: EmbeddedZooKeeper) -> None:
    """The session ends although kazoo's thread continues. The event loop gets a new session when it
    continues, too.
    """
    coord = KazooCoord(server.connect, clock=SystemClock(), session_timeout_ms=4000)
    await coord.start()
    seen = SeenEvents()
    coord.add_listener(seen)
    await coord.create("/of-a-wedged-loop", ephemeral=True)
    gone = threading.Event()
    with session_at(server.connect) as other:
        if other.exists("/of-a-wedged-loop", watch=lambda _: gone.set()) is None:
            gone.set()
        assert gone.wait(PATIENCE_S), "the session outlived the loop"
    await seen.next(SessionEvent.CONNECTED)
    assert seen.events[-2:] == [SessionEvent.EXPIRED, SessionEvent.CONNECTED]
    assert coord.generation == 2
    await coord.close()


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
    seen = SeenEvents()
    coord.add_listener(seen)
    await service.break_connection(coord)
    await seen.next(SessionEvent.SUSPENDED)
    await service.expire(coord)
    late = asyncio.gather(
        *(coord.create(f"/late{number}", ephemeral=True) for number in range(5)),
        return_exceptions=True,
    )
    await service.mend_connection(coord)
    await seen.next(SessionEvent.CONNECTED)
    assert all(isinstance(outcome, Exception) for outcome in await late)
    assert await coord.children("/") == []


async def test_shorter_granted_session_timeout_is_used(server: EmbeddedZooKeeper) -> None:
    coord = KazooCoord(server.connect, clock=SystemClock(), session_timeout_ms=90_000)
    await coord.start()
    assert coord.session_timeout_ms == 60_000
    await coord.close()


async def test_silent_server_is_noticed(server: EmbeddedZooKeeper) -> None:
    """A paused server keeps its connections open. Only its missing answers show that it is
    paused.
    """
    coord = KazooCoord(server.connect, clock=SystemClock(), session_timeout_ms=3000)
    seen = SeenEvents()
    coord.add_listener(seen)
    await coord.start()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await seen.next(SessionEvent.SUSPENDED)
        assert coord.silence() > 0.5
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await seen.next(SessionEvent.RECONNECTED, SessionEvent.EXPIRED)
    await coord.close()


@pytest.mark.parametrize(
    ("listens", "answer"), [(False, b""), (True, b""), (True, b"HTTP/1.1 400 Bad Request\r\n\r\n")]
)
async def test_start_without_a_zookeeper_reports_the_address_to_check(
    listens: bool, answer: bytes
) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        if answer:
            writer.close()

    other = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    if not listens:
        other.close()
        port = free_port()
    coord = KazooCoord(f"127.0.0.1:{port}", clock=SystemClock())
    with pytest.raises(StartupError) as failed:
        await coord.start(timeout_s=0.5)
    other.close()
    start = f"ZooKeeper at 127.0.0.1:{port} does not answer within 0.5 s: "
    assert str(failed.value).startswith(start)
    assert str(failed.value).endswith("(tools: --zookeeper)")


async def test_only_a_broker_creates_the_chroot(server: EmbeddedZooKeeper) -> None:
    """Tools with --zookeeper report a missing chroot and do not create it."""
    place = f"{server.connect}/typo"
    root = KazooCoord(server.connect, clock=SystemClock())
    await root.start()
    sentence = f"ZooKeeper at {server.connect} has no node /typo; check the chroot at the end"
    with pytest.raises(StartupError, match=sentence):
        await KazooCoord(place, clock=SystemClock()).start()
    for words in (
        ["preferred-replica-election", "--zookeeper", place],
        ["configs", "--describe", "--topic", "t", "--zookeeper", place],
        ["zookeeper-shell", place, "ls", "/"],
    ):
        code, error = await tool(*words)
        assert code == 1
        assert error[0].startswith(sentence), words
        assert error[1:] in ([], ["Node does not exist: /"]), words
    assert await root.exists("/typo") is None
    broker = KazooCoord(place, clock=SystemClock())
    await broker.start(make_chroot=True)
    assert await root.exists("/typo") is not None
    await broker.close()
    await root.close()


async def tool(*words: str) -> tuple[int | None, list[str]]:
    """Run the tool. Return exit code and the lines on standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pybroker", *words),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, error.decode().splitlines()


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
    """This tests the helper: a shut gate refuses connections."""
    gate = Gate(1)
    await gate.open()
    await gate.shut()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", gate.port)).close()
