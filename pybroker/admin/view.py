"""The state that the pages show: the components of a running broker, and the phase of its start or
stop.

The pages only read. They are served before the broker is put together, so a view may have no
`rooms` yet.
"""

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
from pybroker.model import TopicPartition
from pybroker.ports import SessionEvent
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_parts import Damage
from pybroker.storage.manager import LogManager


class Phase(enum.Enum):
    """Where a broker is in its life; `number` is Kafka's for it (BrokerState)."""

    STARTING = 1
    RECOVERING = 2
    RUNNING = 3
    STOPPING = 7


class ControllerFacts(Protocol):
    """The controller's state as the pages show it."""

    @property
    def controller_id(self) -> int | None: ...

    @property
    def is_active(self) -> bool: ...

    @property
    def unclean_elections(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """The consumer groups that a broker coordinates. `by_state`: name of the state in lower case
    -> number of groups. Load times are in seconds."""

    by_state: Mapping[str, int]
    partitions: int
    """Loaded partitions of `__consumer_offsets` that this broker coordinates."""
    loading: int
    longest_load_s: float
    mean_load_s: float


@dataclass(slots=True)
class SessionWatch:
    """The history of the session with ZooKeeper. `heard` is the session's listener. A broker
    starts with a connected session."""

    state: SessionEvent = SessionEvent.CONNECTED
    expired: int = counter(
        "kafka_server_sessionexpirelistener_zookeeperexpires_total",
        "Sessions with ZooKeeper that expired.",
    )
    disconnected: int = counter(
        "kafka_server_sessionexpirelistener_zookeeperdisconnects_total",
        "Connections with ZooKeeper that were lost.",
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
    """The components of a broker that the pages look at."""

    broker_id: int
    cluster_id: str
    replicas: ReplicaManager
    metadata: MetadataView
    controller: ControllerFacts
    logs: LogManager
    metrics: Metrics
    session: SessionWatch
    groups: Callable[[], GroupNumbers]
    progress: Callable[[], Awaitable[ProgressReport | None]]
    """The committed offsets and lags of the groups that this broker coordinates; None if unknown
    yet."""
    is_registered: Callable[[], bool]
    connections: Callable[[], Mapping[str, int]]
    """Listener -> open connections."""
    unsent_bytes: Callable[[], int]
    layers: Callable[[], LayeredConfig]
    """The options in force and their sources."""
    journal: Callable[[str | None, int], Awaitable[list[dict[str, object]]]]
    """The newest decisions of this broker's controller, optionally those of one partition only."""
    damaged: Callable[[], Mapping[TopicPartition, Damage]]
    """Replicas with a damaged range in their log, including those in use because no other replica
    has more."""
    full_directories: Callable[[], Collection[str]]
    free_bytes: Callable[[], Awaitable[Mapping[str, int]]]
    """Path of a log directory in use -> free bytes."""


@dataclass(slots=True)
class BrokerView:
    """The phase and the components of the broker, updated by the code that starts and stops it."""

    config: BrokerConfig
    phase: Phase = Phase.STARTING
    rooms: Rooms | None = None
