"""Runs a broker as a process. The start changes no log until the ports are bound, `meta.properties`
is checked, the log directories are locked, and ZooKeeper is connected."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from pybroker.admin.service import AdminService, bind_http
from pybroker.admin.view import BrokerView, Phase, Rooms
from pybroker.applog.output import LogOptions, start_logging
from pybroker.broker.startup import (
    EMBEDDED_DIRECTORY,
    OFFSETS_SESSION_FILE,
    SESSION_FILE,
    StartupInputs,
    serve_until,
    start_broker,
)
from pybroker.clock import SystemClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.coordinator.zookeeper.session_store import FileSessionStore
from pybroker.errors import StartupError
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from pybroker.host.huge_pages import use_huge_pages
from pybroker.host.process import (
    BackgroundThread,
    SystemProc,
    ThreadedBlocking,
    raise_open_files_limit,
    send_ready,
    spare_the_collector,
)
from pybroker.host.scheduling import shorten_slice
from pybroker.metrics import Metrics
from pybroker.server.listener import Bind, bind
from pybroker.storage.files import SystemDisk

try:
    import uvloop

    _LOOP_FACTORY: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # no wheel for this machine: asyncio's own loop works, too, but more slowly
    _LOOP_FACTORY = asyncio.new_event_loop

log = logging.getLogger("pybroker.server")


def run_broker(config: BrokerConfig) -> None:
    """Run a broker until the process receives SIGTERM or SIGINT. Raise StartupError if the broker
    cannot start, or if it ends for another reason than a signal."""
    spare_the_collector(collects=False)
    start_logging(_log_options(config))
    shorten_slice()
    use_huge_pages()
    with asyncio.Runner(loop_factory=_LOOP_FACTORY) as runner:
        runner.run(_run(config))


async def _run(config: BrokerConfig) -> None:
    """Run the broker until SIGTERM or SIGINT. Raise StartupError if the broker cannot start, or
    cannot continue."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | None] = loop.create_future()

    def end(reason: str | None) -> None:
        if not ended.done():
            ended.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    reason = await serve_until(ended, lambda stack: _start(config, stack, end))
    if reason is not None:
        raise StartupError(reason)


async def _start(
    config: BrokerConfig, stack: AsyncExitStack, end: Callable[[str | None], None]
) -> None:
    """Start all components. Push onto `stack` the calls that stop the components. If the running
    broker cannot continue, `end` is called with the reason."""
    for warning in config.warnings:
        log.warning("%s", warning)
    raise_open_files_limit()
    sockets = _bind_all(config, stack)
    view = BrokerView(config)
    http = _open_http(view, stack)
    clock, metrics = SystemClock(), Metrics()

    def report_phase(phase: Phase, rooms: Rooms | None) -> None:
        view.phase = phase
        if rooms is not None:
            view.rooms = rooms

    sessions = _Sessions(config, clock, metrics, stack)
    around = StartupInputs(
        clock=clock,
        rng=random.SystemRandom(),
        disk=SystemDisk(clock=clock, syncs=metrics.syncs),
        proc=SystemProc(),
        metrics=metrics,
        sockets=sockets,
        threads=ThreadedBlocking,
        new_cleaner_thread=BackgroundThread,
        connect=sessions.connect,
        connect_offsets=sessions.connect_offsets,
        check=partial(_check_embedded, config),
        report_phase=report_phase,
    )
    await start_broker(config, around, stack, end)
    spare_the_collector()
    if http is not None:
        http.broker_serves()
    send_ready()


def _log_options(config: BrokerConfig) -> LogOptions:
    return LogOptions(
        directory=config.pybroker_log_dir or None,
        as_json=config.pybroker_log_format == "json",
        level=config.pybroker_log_level,
        levels=config.log_levels,
        file_bytes_max=config.pybroker_log_file_bytes,
        files_kept=config.pybroker_log_files,
        config_file=config.pybroker_log_config or None,
    )


def _open_http(view: BrokerView, stack: AsyncExitStack) -> AdminService | None:
    """Serve the HTTP pages, unless `bind_http` returns None. Raise StartupError if a configured
    port cannot be bound."""
    bound = bind_http(view.config)
    if bound is None:
        return None
    service = AdminService(view, bound)
    stack.push_async_callback(service.close)
    service.start()
    return service


class _Sessions:
    """Opens the broker's ZooKeeper sessions. If no ensemble is configured, `connect` first starts
    an embedded server."""

    def __init__(
        self, config: BrokerConfig, clock: SystemClock, metrics: Metrics, stack: AsyncExitStack
    ) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._stack = stack
        self._servers = config.zookeeper_connect
        self._directory = ""

    async def connect(self, usable: Sequence[str]) -> tuple[KazooCoord, str]:
        """Return the broker's ZooKeeper session, and a text for log lines: the address of the
        ZooKeeper servers. `usable` are the usable log directories."""
        self._directory = usable[0]
        where = self._servers or ""
        if self._servers is None:
            self._servers = await self._start_embedded(usable)
            where = f"{self._servers} (embedded)"
        coord = self._session(SESSION_FILE)
        self._stack.push_async_callback(coord.close)
        await coord.start(self._config.zookeeper_wait_ms / 1000, make_chroot=True)
        return coord, where

    async def connect_offsets(self) -> KazooCoord:
        coord = self._session(OFFSETS_SESSION_FILE)
        await coord.start(self._config.zookeeper_wait_ms / 1000)
        return coord

    def _session(self, file_name: str) -> KazooCoord:
        assert self._servers is not None
        return KazooCoord(
            self._servers,
            clock=self._clock,
            session_timeout_ms=self._config.zookeeper_session_timeout_ms,
            store=FileSessionStore(self._directory, file_name),
            times=self._metrics.coordination,
        )

    async def _start_embedded(self, usable: Sequence[str]) -> str:
        directory = str(Path(self._config.log_directories[0]).absolute())
        if directory not in usable:
            raise StartupError(
                f"log directory {directory} cannot be used, and it contains the embedded"
                " ZooKeeper's data; repair the directory, or give the address of the cluster's"
                " ZooKeeper with --zookeeper"
            )
        embedded = EmbeddedZooKeeper(
            str(Path(directory) / EMBEDDED_DIRECTORY),
            port=self._config.pybroker_embedded_zookeeper_port,
            may_move=self._config.embedded_zookeeper_may_move,
        )
        self._stack.push_async_callback(embedded.stop)
        await embedded.start()
        return embedded.connect


def _bind_all(config: BrokerConfig, stack: AsyncExitStack) -> Mapping[str, socket.socket]:
    sockets = {}
    for listener in config.bound_listeners:
        bound = bind(Bind(listener.name, listener.host, listener.port))
        stack.callback(bound.close)
        sockets[listener.name] = bound
    return sockets


def _check_embedded(config: BrokerConfig, stored_cluster: str | None) -> None:
    """Raise StartupError if the log directories belong to a cluster, but the embedded ZooKeeper's
    directory is missing: a new ZooKeeper would not have the cluster's topics."""
    directory = Path(config.log_directories[0]) / EMBEDDED_DIRECTORY
    if config.zookeeper_connect is None and stored_cluster and not directory.exists():
        raise StartupError(
            f"the log directories belong to cluster {stored_cluster}, but the directory of the"
            f" cluster's embedded ZooKeeper, {directory}, is missing; restore that directory, or"
            " give the address of the cluster's ZooKeeper with --zookeeper"
        )
