"""The state of a broker that its HTTP pages show: its phase (starting, recovering, running,
stopping) and its components. The components are None until they exist."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.layered_config import LayeredConfig
from pybroker.group_lag import ProgressReport
from pybroker.handlers.metadata_view import MetadataView
from pybroker.metrics import Metrics, counter
from pybroker.ports import SessionEvent
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager


class Phase(enum.Enum):
    """The phase of a broker, with the values of Kafka's metric BrokerState."""

    STARTING = 1
    RECOVERING = 2
    RUNNING = 3
    STOPPING = 7


class ControllerFacts(Protocol):
    """The facts about the controller that the pages show. `controller_id` is None if the controller
    is unknown. `is_active` is True if this broker is the controller."""

    @property
    def controller_id(self) -> int | None: ...

    @property
    def is_active(self) -> bool: ...

    @property
    def unclean_elections(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """Numbers about the consumer groups that a broker coordinates. `by_state` maps a state's name
    in lower case to the number of groups. The load times of partitions are in seconds."""

    by_state: Mapping[str, int]
    partitions: int
    """The loaded partitions of `__consumer_offsets` that this broker coordinates."""
    loading: int
    longest_load_s: float
    mean_load_s: float


@dataclass(frozen=True, slots=True)
class TransactionNumbers:
    """Statistics about the transactional ids that a broker coordinates. Load times are in
    seconds."""

    ids: int
    partitions: int
    """The loaded partitions of `__transaction_state` that this broker coordinates."""
    loading: int
    longest_load_s: float
    mean_load_s: float
    waiting_markers: int
    """Markers that are not written yet. This includes `markers_without_leader`."""
    markers_without_leader: int
    completions_to_append: int
    """Transactions whose markers are all written, but whose completion could not be appended to
    `__transaction_state` yet."""


@dataclass(slots=True)
class SessionWatch:
    """The state of the broker's ZooKeeper session, and counters of expired sessions and of lost
    connections. `heard` must be called for each session event."""

    state: SessionEvent = SessionEvent.CONNECTED
    expired: int = counter(
        "kafka_server_sessionexpirelistener_zookeeperexpires_total",
        "ZooKeeper sessions of this broker that have expired.",
    )
    disconnected: int = counter(
        "kafka_server_sessionexpirelistener_zookeeperdisconnects_total",
        "Connections of this broker to ZooKeeper that were lost.",
    )

    def heard(self, event: SessionEvent) -> None:
        self.state = event
        self.expired += event is SessionEvent.EXPIRED
        self.disconnected += event is SessionEvent.SUSPENDED

    @property
    def is_alive(self) -> bool:
        return self.state in (SessionEvent.CONNECTED, SessionEvent.RECONNECTED)


@dataclass(frozen=True, slots=True)
class Rooms:
    """The broker components that supply the data of the HTTP pages."""

    broker_id: int
    cluster_id: str
    replicas: ReplicaManager
    metadata: MetadataView
    controller: ControllerFacts
    logs: LogManager
    metrics: Metrics
    session: SessionWatch
    groups: Callable[[], GroupNumbers]
    transactions: Callable[[], TransactionNumbers]
    progress: Callable[[], Awaitable[ProgressReport | None]]
    """Returns the committed offsets and lags of the groups that this broker coordinates, None
    before the first report."""
    is_registered: Callable[[], bool]
    connections: Callable[[], Mapping[str, int]]
    """Returns the number of open connections of each listener, by the listener's name."""
    unsent_bytes: Callable[[], int]
    layers: Callable[[], LayeredConfig]
    """Returns the present options, with the source of each value."""
    journal: Callable[[str | None, int], Awaitable[list[dict[str, object]]]]
    """Returns the latest controller decisions of this broker, for one partition (None: for all
    partitions), at most the given number."""
    full_directories: Callable[[], Collection[str]]
    free_bytes: Callable[[], Awaitable[Mapping[str, int]]]
    """Returns the free bytes of each log directory in use, by its path."""


@dataclass(slots=True)
class BrokerView:
    """The phase and the components of a broker, for its HTTP pages. The code that starts and stops
    the broker updates `phase` and `rooms`."""

    config: BrokerConfig
    phase: Phase = Phase.STARTING
    rooms: Rooms | None = None
