"""The start of a broker, from the check of its log directories until it serves clients.

The section "Start and stop" of ARCHITECTURE.rst describes the order of the steps.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from pybroker.admin.view import Phase, Rooms
from pybroker.broker.app import BrokerApp
from pybroker.broker.controller_journal import FILE_NAME, OLDER_FILE_NAME
from pybroker.broker.environment import BrokerEnvironment
from pybroker.broker.log_directory_failures import is_in_any_isr
from pybroker.broker.topic_logs import topic_log_config, topic_log_configs
from pybroker.compaction.cleaner import CleanerThread
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.listeners import endpoints
from pybroker.coordinator.zookeeper.late_session import ClosableCoord
from pybroker.coordinator.zookeeper.paths import CLUSTER_ID
from pybroker.coordinator.zookeeper.registry import (
    cluster_id,
    create_parents,
    generate_broker_id,
    wait_until_free,
)
from pybroker.coordinator.zookeeper.repeating import repeat_unanswered
from pybroker.coordinator.zookeeper.schemas import decode_cluster_id
from pybroker.errors import CoordError, MalformedNode, NoNode, StartupError
from pybroker.metrics import Metrics
from pybroker.model import Endpoint
from pybroker.ports import Blocking, Clock, Coord, Disk, Proc, Rng
from pybroker.storage.filename import LOCK
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager

log = logging.getLogger("pybroker.server")

EMBEDDED_DIRECTORY: Final = "zookeeper"
SESSION_FILE: Final = "zookeeper.session"
OFFSETS_SESSION_FILE: Final = "zookeeper.offsets.session"
"""EMBEDDED_DIRECTORY is the directory of the embedded ZooKeeper. SESSION_FILE and
OFFSETS_SESSION_FILE are files with the ids of the broker's two ZooKeeper sessions. All three are in
the first log directory."""
FOREIGN_NAMES: Final = (
    EMBEDDED_DIRECTORY,
    SESSION_FILE,
    OFFSETS_SESSION_FILE,
    FILE_NAME,
    OLDER_FILE_NAME,
)
"""The names of files and directories in a log directory that do not belong to a partition. The log
manager ignores them."""


class Session(Coord, Protocol):
    """A broker's ZooKeeper session, with the ids of the broker's earlier sessions."""

    @property
    def earlier_session_ids(self) -> Collection[int]: ...


class Threads(Blocking, Protocol):
    """The threads for blocking work. `resize` changes their number, `close` waits for the running
    work."""

    def resize(self, threads: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StartupInputs:
    """The services with which a broker starts. `sockets` maps a listener name to its bound socket.
    `threads(n)` creates n threads for blocking work."""

    clock: Clock
    rng: Rng
    disk: Disk
    proc: Proc
    metrics: Metrics
    sockets: Mapping[str, socket.socket]
    threads: Callable[[int], Threads]
    new_cleaner_thread: Callable[[], CleanerThread]
    """Creates a thread of the log cleaner."""
    connect: Callable[[Sequence[str]], Awaitable[tuple[Session, str]]]
    """Opens the broker's ZooKeeper session. Its argument is the usable log directories. Returns the
    session, and the address of the ZooKeeper servers as log lines show it."""
    connect_offsets: Callable[[], Awaitable[ClosableCoord]]
    """Opens a second ZooKeeper session, for committed offsets. Called only after `connect`. Raises
    StartupError."""
    host_name: Callable[[], str] = socket.getfqdn
    check: Callable[[str | None], None] = lambda stored_cluster: None
    """Receives the cluster id that the log directories contain, None for new directories. Raises
    StartupError if the cluster's embedded ZooKeeper is missing."""
    report_phase: Callable[[Phase, Rooms | None], None] = lambda phase, rooms: None
    """Called at the begin of each phase of the broker's life. The second argument is the components
    that the HTTP pages show, or None in a phase without these components."""


async def serve_until(
    ended: asyncio.Future[str | None], start: Callable[[AsyncExitStack], Awaitable[object]]
) -> str | None:
    """Run a broker until `ended` has a result, and return the result: the reason of the end, or
    None after a signal. A result before the broker has started cancels the start."""
    async with AsyncExitStack() as stack:
        starting = asyncio.ensure_future(start(stack))
        ended.add_done_callback(lambda _: starting.cancel())
        try:
            await starting
        except asyncio.CancelledError:
            if not ended.done():
                raise
        reason = await ended
        log.info("shutting down reason=%s", reason or "signal")
    log.info("shut down")
    return reason


async def start_broker(
    config: BrokerConfig,
    around: StartupInputs,
    stack: AsyncExitStack,
    end: Callable[[str | None], None],
) -> BrokerApp:
    """Start a broker and return it. The calls that stop it are pushed onto `stack`. If the broker
    cannot go on, it calls `end` with the reason. Raise StartupError."""
    disk = around.disk
    stored_id, stored_cluster = LogManager.peek(config.log_directories, disk)
    _check_broker_id(config, stored_id)
    around.check(stored_cluster)
    logs = _log_manager(config, around)
    made = [each for each in config.log_directories if not disk.exists(each)]
    stack.callback(_remove_unused, disk, made)
    logs.lock()
    stack.callback(logs.unlock)
    # Closed before the locks are released: a thread may still open logs after a cancelled start.
    blocking = around.threads(config.background_threads)
    stack.callback(blocking.close)
    coord, where = await around.connect(logs.usable_directories)
    stored = _Stored(stored_id, stored_cluster, logs.is_fresh)
    settle = partial(_settle, coord, config, stored, around.rng)
    try:
        cluster, broker_id, configs, expects_data = await repeat_unanswered(
            "ids", settle, clock=around.clock, limit_s=config.zookeeper_wait_ms / 1000
        )
    except (CoordError, MalformedNode) as error:
        text = f"reading the cluster id and the broker id in ZooKeeper at {where} failed"
        raise StartupError(f"{text}: {type(error).__name__}: {error}") from error
    around.report_phase(Phase.RECOVERING, None)
    start = partial(logs.start, broker_id, cluster, configs, expects_data=expects_data)
    await blocking.run(start)
    app = BrokerApp(
        config=config,
        broker_id=broker_id,
        cluster_id=cluster,
        advertised=lambda config: _advertised(config, around),
        logs=logs,
        env=BrokerEnvironment(
            coord,
            around.clock,
            around.rng,
            blocking,
            disk,
            around.connect_offsets,
            around.new_cleaner_thread,
            lambda: coord.earlier_session_ids,
            blocking.resize,
            around.metrics,
        ),
        lost=end,
    )
    stack.push_async_callback(app.stop)
    stack.callback(around.report_phase, Phase.STOPPING, None)
    around.report_phase(Phase.STARTING, app.rooms())
    await app.start(around.sockets)
    _say_where(config, around, where, cluster)
    log.info("[KafkaServer id=%d] started", broker_id)
    return app


def _say_where(config: BrokerConfig, around: StartupInputs, zookeeper: str, cluster: str) -> None:
    log.info("data %s", ", ".join(config.log_directories))
    for name, bound in around.sockets.items():
        log.info("listener %s bound to %s:%d", name, *bound.getsockname()[:2])
    log.info("zookeeper %s cluster %s", zookeeper, cluster)


def _log_manager(config: BrokerConfig, around: StartupInputs) -> LogManager:
    return LogManager(
        directories=[str(Path(path).absolute()) for path in config.log_directories],
        disk=around.disk,
        clock=around.clock,
        proc=around.proc,
        defaults=topic_log_config(config, "", {}),
        rng=around.rng,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        flush_idle_ms=config.pybroker_idle_flush_interval_ms // 2,
        foreign_names=FOREIGN_NAMES,
    )


def _remove_unused(disk: Disk, made: Iterable[str]) -> None:
    """Remove the log directories that a failed start created (`made`) and that are still empty."""
    for directory in made:
        if disk.is_dir(directory) and {LOCK, SESSION_FILE}.issuperset(disk.list_dir(directory)):
            disk.remove_tree(directory)


def _advertised(config: BrokerConfig, around: StartupInputs) -> tuple[Endpoint, ...]:
    ports = {name: bound.getsockname()[1] for name, bound in around.sockets.items()}
    return endpoints(config.advertised, ports, around.host_name())


def _check_broker_id(config: BrokerConfig, stored: int | None) -> None:
    if config.broker_id != -1 and stored is not None and stored != config.broker_id:
        raise StartupError(
            f"the data in {config.log_directories[0]} belongs to broker {stored}, but "
            f"broker.id is {config.broker_id}; set broker.id={stored} or another "
            "log.dirs"
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    """The broker id and cluster id in the log directories (None: not stored), and whether the
    directories are new."""

    broker_id: int | None
    cluster: str | None
    is_fresh: bool


async def _settle(
    coord: Coord, config: BrokerConfig, stored: _Stored, rng: Rng
) -> tuple[str, int, Mapping[str, LogConfig], bool]:
    """Return the cluster id, the broker id, the options of the logs by topic, and whether
    records are missing. Records are missing if the log directories are new, but the broker is in
    an ISR. The caller can repeat the call after an error. Raise StartupError, CoordError or
    MalformedNode."""
    cluster = await _settle_cluster_id(coord, stored.cluster, rng)
    broker_id = await _settle_broker_id(coord, config, stored.broker_id)
    if stored.is_fresh:
        await wait_until_free(coord, broker_id, config.zookeeper_session_timeout_ms)
    configs = await topic_log_configs(coord, config)
    expects_data = stored.is_fresh and await is_in_any_isr(coord, broker_id)
    return cluster, broker_id, configs, expects_data


async def _settle_cluster_id(coord: Coord, stored: str | None, rng: Rng) -> str:
    """Return the cluster id in ZooKeeper, and create it for a new cluster. Raise StartupError if
    `stored`, the id in the log directories, is not None and ZooKeeper has another id or none."""
    known = None
    with suppress(NoNode):
        known = decode_cluster_id(CLUSTER_ID, (await coord.get(CLUSTER_ID))[0])
    if stored is not None and known != stored:
        raise StartupError(
            f"the data in log.dirs belongs to cluster {stored}, but ZooKeeper has "
            f"{'no cluster yet' if known is None else f'cluster {known}'}; "
            "check zookeeper.connect and its chroot, or choose another log.dirs"
        )
    await create_parents(coord)
    return known or await cluster_id(coord, rng)


async def _settle_broker_id(coord: Coord, config: BrokerConfig, stored: int | None) -> int:
    """Return `broker.id` if it is set. Otherwise return `stored`, the id in the log directories. If
    that is None, return an id that ZooKeeper generates."""
    if config.broker_id != -1:
        return config.broker_id
    if stored is not None:
        return stored
    return await generate_broker_id(coord, config.reserved_broker_max_id)
