"""The environment of a broker: session, clock, disk, threads. `startup.py` fills it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from pybroker.coordinator.zookeeper.late_session import ClosableCoord
from pybroker.metrics import Metrics
from pybroker.ports import Blocking, Clock, Coord, Disk, Rng


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """Everything outside of the broker that its components use."""

    coord: Coord
    clock: Clock
    rng: Rng
    blocking: Blocking
    disk: Disk
    connect_offsets: Callable[[], Awaitable[ClosableCoord]]
    """Opens the ZooKeeper session for writing offsets. Raises StartupError."""
    earlier_session_ids: Callable[[], Collection[int]] = tuple
    """Earlier ZooKeeper sessions of this broker. It may replace their registrations."""
    resize_blocking: Callable[[int], None] = lambda threads: None
    """Changes the number of threads of `blocking`."""
    metrics: Metrics = field(default_factory=Metrics)
    """All counters of the process, also those outside of the broker."""
