"""The services and the request that each handler receives. Handlers have no state."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from pybroker.applog.rate_limit import LogLimit
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.layered_config import LayeredConfig
from pybroker.coordinator.controller.events import Election, ElectionType
from pybroker.coordinator.groups.service import GroupService
from pybroker.coordinator.offsets.classic_nodes import ClassicOffsets
from pybroker.coordinator.zookeeper.config_store import Change
from pybroker.coordinator.zookeeper.paths import ConfigEntity
from pybroker.errors import ErrorCode
from pybroker.handlers.config_entries import ConfigEntry
from pybroker.handlers.fetch_sessions import FetchSessionCache
from pybroker.handlers.metadata_view import MetadataView
from pybroker.metrics import Metrics
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, BrokerChannel, Clock
from pybroker.replication.isr_changes import LeadNow
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.mover import ReplicaMover
from pybroker.wire.headers import RequestHeader

AUTO_CREATE_WAIT_S: Final = 1.0
"""How long (s) a request waits for the leaders of a topic that it created."""


class ControllerView(Protocol):
    """The controller as the handlers use it."""

    @property
    def controller_id(self) -> int | None:
        """The id of the current controller's broker, or None if it is unknown."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""

    async def elect_leaders(
        self, election_type: ElectionType, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Election]:
        """Hold elections. Raise BrokerError NOT_CONTROLLER."""

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> tuple[TopicPartition, ...]:
        """Move the leaders of that broker's partitions to other brokers. Return the partitions that
        the broker still leads. Raise BrokerError."""


class ZooKeeperLease(Protocol):
    """The ZooKeeper lease of the broker."""

    @property
    def is_valid(self) -> bool:
        """Whether ZooKeeper answers and the broker is registered in its session."""

    def check(self) -> None:
        """Determine the level of authority again if the lease may have expired."""


class TopicAdmin(Protocol):
    """Creates, expands and deletes topics. All methods may raise BrokerError with the code for the
    client."""

    async def create(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        assignment: Mapping[int, Sequence[int]] | None,
        configs: Mapping[str, str],
        validate_only: bool,
    ) -> CreatedTopic: ...

    async def delete(self, name: str, topic_id: uuid.UUID | None = None) -> None:
        """Request the deletion, if the topic has that id. The controller carries it out."""

    async def expand(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Add partitions until the topic has `count` partitions. `assignments` places the new
        ones."""

    async def wait_until_gone(self, name: str, timeout_s: float) -> bool:
        """Wait until the topic is deleted. Return False if it still exists after the timeout."""

    async def stored_count(self, name: str) -> tuple[uuid.UUID | None, int] | None:
        """Return the topic's id (None if it has none) and its number of partitions, from ZooKeeper.
        Return None if there is no such topic. Raise CoordError or MalformedNode."""


class InternalTopic(Protocol):
    """A topic with the state of coordinators. All methods may raise BrokerError
    COORDINATOR_NOT_AVAILABLE."""

    @property
    def is_known(self) -> bool:
        """Whether the number of partitions is known, which `partition_of` needs."""

    def partition_of(self, key: str) -> int:
        """Return the partition of a group or a transactional id."""

    def leader_of(self, partition: int) -> int:
        """Return the leader of that partition, which coordinates its groups."""

    async def settle(self, wait_s: float) -> None:
        """Create the topic if it is missing, and wait until its partitions have leaders."""


class Configs(Protocol):
    """The configurations of topics and brokers. Methods that use ZooKeeper may raise CoordError, or
    MalformedNode if a node contains no configuration."""

    @property
    def layers(self) -> LayeredConfig:
        """The broker's options in force, each with its source."""

    async def read(self, entity: ConfigEntity) -> dict[str, str]:
        """Return the values that are set for an entity."""

    async def change_topic(self, name: str, change: Change, *, replaces: bool) -> bool:
        """Replace a topic's values by `change(values)`. Return False if there is no such topic.
        With `replaces`, `change` ignores the stored values."""

    async def change_broker(self, broker_id: int | None, change: Change, *, replaces: bool) -> None:
        """Replace the values of one broker, or (None) of all brokers, by `change(values)`."""


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that has been created, or (validate only) that could be created."""

    topic_id: uuid.UUID
    assignment: Mapping[int, Sequence[int]]
    configs: Sequence[ConfigEntry]


def _nothing() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the broker that handlers use."""

    broker_id: int
    cluster_id: str
    config: BrokerConfig
    replicas: ReplicaManager
    mover: ReplicaMover
    metadata: MetadataView
    controller: ControllerView
    commands: BrokerChannel
    """Carries out the commands of the controller on this broker."""
    lead_now: LeadNow
    prove_controller: Callable[[int], Awaitable[None]]
    """Raises BrokerError unless a controller of that epoch has existed."""
    topics: TopicAdmin
    group_topic: InternalTopic
    groups: GroupService
    classic_offsets: ClassicOffsets
    configs: Configs
    producer_ids: Callable[[], Awaitable[int]]
    clock: Clock
    blocking: Blocking
    metrics: Metrics
    fetch_sessions: FetchSessionCache
    log_limit: LogLimit
    """The limit of log lines that clients can cause."""
    lease: ZooKeeperLease
    unsent_bytes: Callable[[], int] = _nothing
    """Returns the size (bytes) of the answers in memory that slow peers have not read yet."""

    @property
    def controller_id(self) -> int:
        """The controller's broker id, or -1 if it is unknown, as in the protocol."""
        known = self.controller.controller_id
        if not self.lease.is_valid and self.metadata.discovered_controller is not None:
            known = self.metadata.discovered_controller
        return -1 if known is None else known


class Request(NamedTuple):
    """One request: its header, its listener and the host of the client."""

    header: RequestHeader
    listener: str
    peer_host: str

    @property
    def version(self) -> int:
        return self.header.version


@dataclass(frozen=True, slots=True)
class Failure:
    """The error code and message of a failed item of a request."""

    code: ErrorCode
    message: str
