"""What a broker is given of the world around it: `startup.py` fills it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from pybroker.coordinator.zookeeper.late_session import ClosableCoord
from pybroker.metrics import Metrics
from pybroker.ports import Blocking, Clock, Coord, Disk, Rng


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """What a broker is given of the world around it."""

    coord: Coord
    clock: Clock
    rng: Rng
    blocking: Blocking
    disk: Disk
    connect_offsets: Callable[[], Awaitable[ClosableCoord]]
    """Opens the session over which offsets are written. Raises StartupError."""
    earlier_session_ids: Callable[[], Collection[int]] = tuple
    """ZooKeeper sessions that this broker had before; what they registered may be replaced."""
    resize_blocking: Callable[[int], None] = lambda threads: None
    """Gives `blocking` another number of threads."""
    metrics: Metrics = field(default_factory=Metrics)
    """Where everything counts, also what is outside of the broker."""
