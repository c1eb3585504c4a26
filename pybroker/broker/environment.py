"""The environment of a broker: its ZooKeeper session, clock, disk and threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from pybroker.compaction.cleaner import CleanerThread
from pybroker.coordinator.zookeeper.late_session import ClosableCoord
from pybroker.metrics import Metrics
from pybroker.ports import Blocking, Clock, Coord, Disk, Rng


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """The clock, the disk, the ZooKeeper session and the other services that a broker's components
    use."""

    coord: Coord
    clock: Clock
    rng: Rng
    blocking: Blocking
    disk: Disk
    connect_offsets: Callable[[], Awaitable[ClosableCoord]]
    """Opens the separate ZooKeeper session in which the broker writes committed offsets. Raises
    StartupError."""
    new_cleaner_thread: Callable[[], CleanerThread]
    """Creates a thread of the log cleaner."""
    earlier_session_ids: Callable[[], Collection[int]] = tuple
    """Returns the ids of this broker's earlier ZooKeeper sessions. If one of them owns the
    registration of this broker id, the registration is this broker's own, and the broker may
    replace it."""
    resize_blocking: Callable[[int], None] = lambda threads: None
    """Changes the number of threads of `blocking`."""
    metrics: Metrics = field(default_factory=Metrics)
    """All counters of the process, including those that are incremented outside of the broker's
    components."""
