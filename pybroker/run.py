"""A broker as a process: everything real around `app.py`, from the ports to the last signal.

Nothing is changed before it is known that the broker can run: ports are bound, configuration and
`meta.properties` compared, the data directories locked, and ZooKeeper asked, in this order.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from pybroker.admin.service import AdminService, bind_http
from pybroker.admin.view import BrokerView, Phase
from pybroker.app import BrokerApp, World
from pybroker.broker_config import BrokerConfig
from pybroker.clock import SystemClock
from pybroker.controller_journal import FILE_NAME, OLDER_FILE_NAME
from pybroker.coordinator.zookeeper.embedded import EmbeddedZooKeeper
from pybroker.coordinator.zookeeper.paths import CLUSTER_ID
from pybroker.coordinator.zookeeper.registry import (
    cluster_id,
    create_parents,
    generate_broker_id,
    wait_until_free,
)
from pybroker.coordinator.zookeeper.schemas import decode_cluster_id
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.coordinator.zookeeper.session_store import FileSessionStore
from pybroker.errors import CoordError, MalformedNode, NoNode, StartupError
from pybroker.listeners import endpoints
from pybroker.log_directories import has_had_partitions
from pybroker.log_output import LogOptions, start_logging
from pybroker.metrics import Metrics
from pybroker.model import Endpoint
from pybroker.ports import Clock, Disk, Rng
from pybroker.process import (
    SystemProc,
    ThreadedBlocking,
    raise_open_files_limit,
    spare_the_collector,
    tell_ready,
)
from pybroker.server.listener import Bind, bind
from pybroker.storage.filename import LOCK
from pybroker.storage.files import SystemDisk
from pybroker.storage.manager import LogManager
from pybroker.topic_logs import topic_log_config

try:
    import uvloop

    _LOOP_FACTORY: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # no wheel for this machine: asyncio's own loop serves, more slowly
    _LOOP_FACTORY = asyncio.new_event_loop

log = logging.getLogger("pybroker.server")

EMBEDDED_DIRECTORY: Final = "zookeeper"
SESSION_FILE: Final = "zookeeper.session"
"""Both under the first log directory."""
FOREIGN_NAMES: Final = (EMBEDDED_DIRECTORY, SESSION_FILE, FILE_NAME, OLDER_FILE_NAME)
"""What lies beside the partitions and is not theirs."""


def run_broker(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT. Raises StartupError if it cannot start or may not go
    on."""
    start_logging(_log_options(config))
    with asyncio.Runner(loop_factory=_LOOP_FACTORY) as runner:
        runner.run(_run(config))


async def _run(config: BrokerConfig) -> None:
    """Start, wait for a signal or a reason to end, stop. A signal also ends a start."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | None] = loop.create_future()

    def end(reason: str | None) -> None:
        if not ended.done():
            ended.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(_start(config, stack, end), name="start")
        ended.add_done_callback(lambda _: starting.cancel())
        try:
            await starting
        except asyncio.CancelledError:
            if not ended.done():
                raise
        reason = await ended
        log.info("shutting down reason=%s", reason or "signal")
    log.info("shut down")
    if reason is not None:
        raise StartupError(reason)


async def _start(
    config: BrokerConfig, stack: AsyncExitStack, end: Callable[[str | None], None]
) -> None:
    """Bring everything up; what has to be undone at the end is left in `stack`."""
    for warning in config.warnings:
        log.warning("%s", warning)
    raise_open_files_limit()
    sockets = _bind_all(config, stack)
    view = BrokerView(config)
    http = _open_http(view, stack)
    clock, rng, metrics = SystemClock(), random.SystemRandom(), Metrics()
    disk = SystemDisk(clock=clock, syncs=metrics.syncs)
    stored_id, stored_cluster = LogManager.peek(config.log_directories, disk)
    _check_broker_id(config, stored_id)
    _check_embedded(config, stored_cluster)
    logs = _log_manager(config, clock, rng, disk)
    stack.callback(_remove_unused, [d for d in config.log_directories if not disk.exists(d)])
    logs.lock()
    stack.callback(logs.unlock)
    # Closed before the locks go: a start that is given up may still be opening logs in a thread.
    blocking = ThreadedBlocking(config.background_threads)
    stack.callback(blocking.close)
    coord, where = await _connect(config, logs.usable_directories, clock, metrics, stack)
    try:
        cluster = await _settle_cluster_id(coord, stored_cluster, rng)
        broker_id = await _settle_broker_id(coord, config, stored_id)
        fresh = logs.is_fresh
        if fresh:
            await wait_until_free(coord, broker_id, config.zookeeper_session_timeout_ms)
        expects_data = fresh and await has_had_partitions(coord, broker_id)
    except (CoordError, MalformedNode) as error:
        raise StartupError(f"ZooKeeper at {where} failed: {error!r}") from error
    view.phase = Phase.RECOVERING
    await blocking.run(partial(logs.start, broker_id, cluster, expects_data=expects_data))
    app = BrokerApp(
        config=config,
        broker_id=broker_id,
        cluster_id=cluster,
        advertised=_advertised(config, sockets),
        logs=logs,
        world=World(
            coord, clock, rng, blocking, lambda: coord.earlier_session_ids, blocking.resize, metrics
        ),
        lost=end,
    )
    stack.push_async_callback(app.stop)
    stack.callback(setattr, view, "phase", Phase.STOPPING)
    view.phase, view.rooms = Phase.STARTING, app.rooms()
    await app.start(sockets)
    log.info("data %s", ", ".join(config.log_directories))
    for name, bound in sockets.items():
        log.info("listener %s bound to %s:%d", name, *bound.getsockname()[:2])
    log.info("zookeeper %s cluster %s", where, cluster)
    log.info("[KafkaServer id=%d] started", broker_id)
    spare_the_collector()
    if http is not None:
        http.broker_serves()
    tell_ready()


def _log_manager(config: BrokerConfig, clock: Clock, rng: Rng, disk: Disk) -> LogManager:
    return LogManager(
        directories=[str(Path(path).absolute()) for path in config.log_directories],
        disk=disk,
        clock=clock,
        proc=SystemProc(),
        defaults=topic_log_config(config, "", {}),
        rng=rng,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        flush_idle_ms=config.pybroker_idle_flush_interval_ms // 2,
        foreign_names=FOREIGN_NAMES,
    )


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
    """Bind the HTTP port, so that health can be asked for during the start, too."""
    bound = bind_http(view.config)
    if bound is None:
        return None
    service = AdminService(view, bound)
    stack.push_async_callback(service.close)
    service.start()
    return service


async def _connect(
    config: BrokerConfig,
    usable: Sequence[str],
    clock: SystemClock,
    metrics: Metrics,
    stack: AsyncExitStack,
) -> tuple[KazooCoord, str]:
    """A session with the ensemble of the configuration, or with an embedded server; and where."""
    directory = str(Path(config.log_directories[0]).absolute())
    connect = config.zookeeper_connect
    where = connect or ""
    if connect is None:
        if directory not in usable:
            raise StartupError(
                f"log directory {directory} cannot be used, and the embedded ZooKeeper's data is in"
                " it; repair it, or give the cluster's --zookeeper"
            )
        embedded = EmbeddedZooKeeper(
            str(Path(directory) / EMBEDDED_DIRECTORY),
            port=config.pybroker_embedded_zookeeper_port,
        )
        stack.push_async_callback(embedded.stop)
        await embedded.start()
        connect = embedded.connect
        where = f"{connect} (embedded)"
    coord = KazooCoord(
        connect,
        clock=clock,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        store=FileSessionStore(usable[0], SESSION_FILE),
        times=metrics.coordination,
    )
    stack.push_async_callback(coord.close)
    await coord.start(config.zookeeper_wait_ms / 1000)
    return coord, where


def _remove_unused(made: Iterable[str]) -> None:
    """A start that failed leaves no directory behind that it made and put nothing into."""
    for directory in map(Path, made):
        left_over = {directory / LOCK, directory / SESSION_FILE}
        if directory.is_dir() and left_over.issuperset(directory.iterdir()):
            for path in left_over:
                path.unlink(missing_ok=True)
            directory.rmdir()


def _advertised(config: BrokerConfig, sockets: Mapping[str, socket.socket]) -> tuple[Endpoint, ...]:
    ports = {name: bound.getsockname()[1] for name, bound in sockets.items()}
    return endpoints(config.advertised, ports, socket.getfqdn())


def _bind_all(config: BrokerConfig, stack: AsyncExitStack) -> Mapping[str, socket.socket]:
    sockets = {}
    for listener in config.bound_listeners:
        bound = bind(Bind(listener.name, listener.host, listener.port))
        stack.callback(bound.close)
        sockets[listener.name] = bound
    return sockets


def _check_broker_id(config: BrokerConfig, stored: int | None) -> None:
    if config.broker_id != -1 and stored is not None and stored != config.broker_id:
        raise StartupError(
            f"the data in {config.log_directories[0]} belongs to broker {stored}, but broker.id is "
            f"{config.broker_id}; set broker.id={stored} or another log.dirs"
        )


def _check_embedded(config: BrokerConfig, stored_cluster: str | None) -> None:
    """Data without the ZooKeeper that knows what they are cannot be served, and a new one would
    only get in the way of the old one's return."""
    directory = Path(config.log_directories[0]) / EMBEDDED_DIRECTORY
    if config.zookeeper_connect is None and stored_cluster and not directory.exists():
        raise StartupError(
            f"the data belongs to cluster {stored_cluster}, but its embedded ZooKeeper's directory "
            f"{directory} is missing; restore it, or give the cluster's --zookeeper"
        )


async def _settle_cluster_id(coord: KazooCoord, stored: str | None, rng: Rng) -> str:
    """The cluster's id. Raises StartupError, before anything is written, if the data belongs to
    another cluster."""
    known = None
    with suppress(NoNode):
        known = decode_cluster_id(CLUSTER_ID, (await coord.get(CLUSTER_ID))[0])
    if stored is not None and known != stored:
        raise StartupError(
            f"the data belongs to cluster {stored}, but ZooKeeper holds "
            f"{'no cluster yet' if known is None else f'cluster {known}'}; "
            "check zookeeper.connect and its chroot, or use another data directory"
        )
    await create_parents(coord)
    return known or await cluster_id(coord, rng)


async def _settle_broker_id(coord: KazooCoord, config: BrokerConfig, stored: int | None) -> int:
    """broker.id, else the id of the data, else a generated one."""
    if config.broker_id != -1:
        return config.broker_id
    if stored is not None:
        return stored
    return await generate_broker_id(coord, config.reserved_broker_max_id)
