"""The embedded ZooKeeper: the server is a child process of a broker without a configured ensemble.

Two servers on one data directory would diverge silently. So the broker holds a lock on
`owner.lock`, and the server process holds a lock on `server.lock`. If only `server.lock` is locked,
the broker was killed: the next start kills the old server. The server has its own process group, so
that Ctrl-C does not reach the server.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.zookeeper.handshake import open_and_close
from pybroker.errors import StartupError
from pybroker.host.child_process import ended, tied_to_us
from pybroker.host.java import server_command

log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 3.0
_POLL_S: Final = 0.02
_RESTART_DELAY_S: Final = 1.0
_LEAST_SESSION_MS: Final = 1000
_LAST_WORDS_BYTES: Final = 4000

_SERVER_PROPERTIES: Final = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=1000
autopurge.purgeInterval=1
autopurge.snapRetainCount=3
admin.enableServer=false
4lw.commands.whitelist=srvr
"""
_LOGGING_PROPERTIES: Final = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={directory}/zookeeper.log
appender.file.filePattern={directory}/zookeeper.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=[%d] %p %m (%c{{1}})%n%ex
appender.file.policies.type=SizeBasedTriggeringPolicy
appender.file.policies.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
logger.connections.name=org.apache.zookeeper.server.NIOServerCnxn
logger.connections.level=error
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""


class EmbeddedZooKeeper:
    """An embedded ZooKeeper: owns its directory and the server's process from `start` to `stop`."""

    def __init__(self, directory: str, *, port: int = 0, may_move: bool = False) -> None:
        """With `port` 0, the server gets the port of its last start, or any free port. Otherwise,
        the server gets `port` if this port is free. If `port` is in use, the start fails without
        `may_move`. With `may_move`, the server then gets a port as with 0."""
        self._directory = Path(directory).absolute()
        self._asked_port = port
        self._may_move = may_move
        self._port = 0
        self._port_claim: socket.socket | None = None
        self._owner_lock = -1
        self._command: list[str] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._supervisor = BackgroundTask("embedded-zookeeper")

    @property
    def port(self) -> int:
        """The port of the ZooKeeper server; 0 before `start`."""
        return self._port

    @property
    def connect(self) -> str:
        """The server's address (HOST:PORT), as a value for `zookeeper.connect`."""
        return f"{_HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the server; 0 before `start` and after `stop`."""
        return self._child.pid if self._child is not None else 0

    async def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the server and wait until it answers. If it does not, stop it and raise
        StartupError."""
        await self.launch()
        await self.wait_until_serving(timeout_s)

    async def launch(self) -> None:
        """Start the server's process, without waiting for an answer. After this call, `connect` has
        the final address. Raises StartupError."""
        self._command = server_command(self._config_file, self._directory / "log4j2.properties")
        if not self._directory.exists() and not self._may_move:
            # in a used directory, the server of a killed broker may still have the port
            self._check_port()
        self._take_directory()
        try:
            await self._start_child()
        except BaseException:
            await self.stop()
            raise
        self._asked_port, self._may_move = self._port, False  # a restart must keep the port

    async def wait_until_serving(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until the launched server answers. Then start a task that restarts the server
        whenever the server ends. Without an answer in time, stop the server and raise
        StartupError."""
        assert self._child is not None, "call launch before wait_until_serving"
        try:
            async with asyncio.timeout(timeout_s):
                await self._await_answer(self._child)
        except TimeoutError:
            await self.stop()
            raise StartupError(
                f"the embedded ZooKeeper did not answer on port {self._port} within"
                f" {timeout_s:g} s; see {self._directory}/zookeeper.log"
            ) from None
        except BaseException:
            await self.stop()
            raise
        self._supervisor.start(self._supervise)

    async def stop(self) -> None:
        """Stop the server within a few seconds, and release the port and `owner.lock`.
        Idempotent."""
        await self._supervisor.stop()
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            child.terminate()
            try:
                async with asyncio.timeout(_END_TIMEOUT_S):
                    await ended(child)
            except TimeoutError:
                child.kill()
                await ended(child)
        if self._port_claim is not None:
            self._port_claim.close()
            self._port_claim = None
        if self._owner_lock >= 0:
            os.close(self._owner_lock)
            self._owner_lock = -1

    # ---- private: the directory

    @property
    def _config_file(self) -> Path:
        return self._directory / "zoo.cfg"

    @property
    def _record_file(self) -> Path:
        return self._directory / "server.json"

    def _take_directory(self) -> None:
        try:
            (self._directory / "data").mkdir(parents=True, exist_ok=True)
            self._owner_lock = _locked(self._directory / "owner.lock")
        except BlockingIOError:
            raise StartupError(
                f"the ZooKeeper directory {self._directory} is in use by another process;"
                " stop that process or give another directory with --data"
            ) from None
        except OSError as error:
            raise StartupError(
                f"the ZooKeeper directory {self._directory} cannot be used: {error.strerror};"
                " give another directory with --data"
            ) from error

    def _record(self) -> dict[str, int]:
        """Return the stored data of the server's last start: the process id (`pid`), the kernel's
        start time of the process (`start`), and `port`. All are 0 without stored data."""
        try:
            content = json.loads(self._record_file.read_bytes())
            return {key: int(content[key]) for key in ("pid", "start", "port")}
        except (OSError, ValueError, KeyError, TypeError):
            return {"pid": 0, "start": 0, "port": 0}

    def _write_record(self, pid: int) -> None:
        record = {"pid": pid, "start": _start_time(pid), "port": self._port}
        temporary = self._record_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(record))
        temporary.replace(self._record_file)

    def _write_config(self) -> None:
        directory = str(self._directory).replace("\\", "\\\\")
        lines = f"dataDir={directory}/data\nclientPort={self._port}\nclientPortAddress={_HOST}\n"
        self._config_file.write_text(_SERVER_PROPERTIES + lines)
        (self._directory / "log4j2.properties").write_text(
            _LOGGING_PROPERTIES.format(directory=directory)
        )

    # ---- private: the server's process

    async def _start_child(self) -> subprocess.Popen[bytes]:
        lock = await self._lock_for_server()
        try:
            self._port = self._choose_port()
            self._write_config()
            child = self._child = self._spawn(lock)
        finally:
            os.close(lock)  # the child has its own descriptor
        self._write_record(child.pid)
        return child

    async def _lock_for_server(self) -> int:
        """Take `server.lock` and return its file descriptor. If the server of a killed broker has
        the lock, kill that server first. Raise StartupError if another process keeps the lock."""
        path = self._directory / "server.lock"
        try:
            return _locked(path)
        except BlockingIOError:
            self._end_orphan()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                while True:
                    with suppress(BlockingIOError):
                        return _locked(path)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise StartupError(
                f"another ZooKeeper server uses the directory {self._directory};"
                " stop that server or give another directory with --data"
            ) from None

    def _end_orphan(self) -> None:
        """Kill the server process that `server.json` records. Do nothing if another process now has
        the recorded process id."""
        record = self._record()
        pid = record["pid"]
        if pid and record["start"] == _start_time(pid) and self._is_ours(pid):
            log.warning("killing the zookeeper of an earlier, killed broker pid=%d", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_ours(self, pid: int) -> bool:
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(self._config_file) in arguments

    def _choose_port(self) -> int:
        """Return the port for the server. If the configured port is in use, choose another port if
        `_may_move` is True, else raise StartupError."""
        asked = self._asked_port
        if asked and self._take(asked):
            return asked
        if asked and not self._may_move:
            raise self._port_in_use()
        port = self._record()["port"]
        while not (port and self._take(port)):
            with socket.create_server((_HOST, 0)) as probe:
                port = int(probe.getsockname()[1])
        if asked:
            log.warning("port %d is in use, the embedded ZooKeeper takes port %d", asked, port)
        return port

    def _check_port(self) -> None:
        """Raise StartupError if the configured port is in use."""
        if self._asked_port and not _is_free(self._asked_port):
            raise self._port_in_use()

    def _port_in_use(self) -> StartupError:
        return StartupError(
            f"port {self._asked_port} for the embedded ZooKeeper is in use; free it, or set"
            " pybroker.embedded.zookeeper.port to another port"
        )

    def _take(self, port: int) -> bool:
        """Claim the port for this process, until the server binds it. Return False if it is not
        free."""
        if self._port_claim is not None and self._port == port:
            return _is_free(port)
        claim = _claimed(port)
        if claim is None:
            return False
        if not _is_free(port):
            claim.close()
            return False
        self._port_claim = claim
        return True

    def _spawn(self, lock: int) -> subprocess.Popen[bytes]:
        with (self._directory / "zookeeper.out").open("wb") as output:
            return subprocess.Popen(
                tied_to_us(self._command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                pass_fds=(lock,),
                start_new_session=True,
            )

    async def _await_answer(self, child: subprocess.Popen[bytes]) -> None:
        while child.poll() is None:
            with suppress(OSError):
                await open_and_close(
                    [(_HOST, self._port)], timeout_ms=_LEAST_SESSION_MS, timeout_s=1.0
                )
                return
            await asyncio.sleep(_POLL_S)
        raise StartupError(
            f"the embedded ZooKeeper ended during its start (exit code {child.returncode}):"
            f" {self._last_words()}; see {self._directory}/zookeeper.log"
        )

    def _last_words(self) -> str:
        for name in ("zookeeper.out", "zookeeper.log"):
            with suppress(OSError):
                text = (
                    (self._directory / name)
                    .read_bytes()[-_LAST_WORDS_BYTES:]
                    .decode("utf-8", "replace")
                )
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                faults = [line for line in lines if "rror" in line or "xception" in line]
                if faults or lines:
                    return (faults or lines)[-1]
        return "the server printed nothing"

    async def _supervise(self) -> None:
        """Start the server again whenever it ends."""
        while True:
            child = self._child
            if child is not None:
                await ended(child)
                log.error(
                    "zookeeper ended, restarting it pid=%d exit_code=%s",
                    child.pid,
                    child.returncode,
                )
            await asyncio.sleep(_RESTART_DELAY_S)
            try:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    await self._await_answer(await self._start_child())
            except (StartupError, OSError, TimeoutError) as error:
                log.error("restart of zookeeper failed, trying again error=%s", error)


def _locked(path: Path) -> int:
    """Lock the file and return its descriptor. Closing the descriptor releases the lock. Raise
    BlockingIOError if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since the machine's boot. Return 0 if there is
    no such process, or if the system has no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _claimed(port: int) -> socket.socket | None:
    """Return a socket that claims the port until the socket is closed, or None if another process
    claims the port."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0pybroker-embedded-zookeeper-{port}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            claim.close()
            return None
    return claim


def _is_free(port: int) -> bool:
    try:
        socket.create_server((_HOST, port)).close()
    except OSError:
        return False
    return True
