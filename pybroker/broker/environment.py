"""The environment of a broker: ZooKeeper session, clock, disk, threads. `startup.py` creates it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from pybroker.coordinator.zookeeper.late_session import ClosableCoord
from pybroker.metrics import Metrics
from pybroker.ports import Blocking, Clock, Coord, Disk, Rng


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """The services outside of the broker that its components use."""

    coord: Coord
    clock: Clock
    rng: Rng
    blocking: Blocking
    disk: Disk
    connect_offsets: Callable[[], Awaitable[ClosableCoord]]
    """Opens the ZooKeeper session in which offsets are written. Raises StartupError."""
    earlier_session_ids: Callable[[], Collection[int]] = tuple
    """The ids of earlier ZooKeeper sessions of this broker, whose registrations it may replace."""
    resize_blocking: Callable[[int], None] = lambda threads: None
    """Changes the number of threads of `blocking`."""
    metrics: Metrics = field(default_factory=Metrics)
    """All counters of the process, including those outside of the broker."""
