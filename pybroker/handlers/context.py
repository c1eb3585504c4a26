"""What handlers are given: the services of the broker, and who asks. Handlers own nothing."""

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
"""How long a request waits for a topic that it caused to be made."""


class ControllerView(Protocol):
    """What requests need to know of the controller."""

    @property
    def controller_id(self) -> int | None:
        """The broker that is the controller, or None if none is known."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""

    async def elect_leaders(
        self, election_type: ElectionType, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Election]:
        """Hold elections. Raises BrokerError NOT_CONTROLLER."""

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> tuple[TopicPartition, ...]:
        """Let others lead what that broker leads; gives what it leads still. Raises BrokerError."""


class Standing(Protocol):
    """What the broker may answer, as far as it hears from ZooKeeper."""

    @property
    def is_heard(self) -> bool:
        """Whether ZooKeeper answers, in a session in which the broker is registered."""

    def check(self) -> None:
        """See what may be answered now."""


class TopicAdmin(Protocol):
    """Changes to topics. All may raise BrokerError with the code that the client shall see."""

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
        """Ask for the deletion, if that is the topic's id; the controller carries it out."""

    async def grow(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Ask for partitions until there are `count`; `assignments` places the new ones."""

    async def wait_until_gone(self, name: str, timeout_s: float) -> bool:
        """Whether the name became free within that time."""

    async def stored_count(self, name: str) -> tuple[uuid.UUID | None, int] | None:
        """The topic's id, if it has one, and how many partitions it has, as it is stored; None if
        there is no such topic. May raise CoordError, MalformedNode."""


class InternalTopic(Protocol):
    """Where coordinators keep their state. All may raise BrokerError COORDINATOR_NOT_AVAILABLE."""

    @property
    def is_known(self) -> bool:
        """Whether `partition_of` has an answer."""

    def partition_of(self, key: str) -> int:
        """The partition of a group or a transactional id."""

    def leader_of(self, partition: int) -> int:
        """The broker that coordinates what lies there."""

    async def settle(self, wait_s: float) -> None:
        """Make the topic if there is none, and wait until it can be used."""


class Configs(Protocol):
    """The configurations of topics and brokers. All that asks ZooKeeper may raise CoordError, and
    MalformedNode where a node has to be read that holds no configuration."""

    @property
    def layers(self) -> LayeredConfig:
        """The broker's options that hold now, and where each comes from."""

    async def read(self, entity: ConfigEntity) -> dict[str, str]:
        """The values that were set for an entity."""

    async def change_topic(self, name: str, change: Change, *, replaces: bool) -> bool:
        """Replace a topic's values by `change` of them; False if there is no such topic. With
        `replaces`, `change` does not depend on what is there."""

    async def change_broker(self, broker_id: int | None, change: Change, *, replaces: bool) -> None:
        """The same for one broker, or (None) for all."""


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was made, or (validate only) would have been."""

    topic_id: uuid.UUID
    assignment: Mapping[int, Sequence[int]]
    configs: Sequence[ConfigEntry]


def _nothing() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that handlers may use."""

    broker_id: int
    cluster_id: str
    config: BrokerConfig
    replicas: ReplicaManager
    mover: ReplicaMover
    metadata: MetadataView
    controller: ControllerView
    commands: BrokerChannel
    """Carries out what the controller, wherever it is, tells this broker."""
    lead_now: LeadNow
    prove_controller: Callable[[int], Awaitable[None]]
    """Raises BrokerError unless there has been a controller of that epoch."""
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
    """For lines that clients can cause at will."""
    standing: Standing
    unsent_bytes: Callable[[], int] = _nothing
    """How much of the answers waits in memory for peers that read slowly."""

    @property
    def controller_id(self) -> int:
        """The controller's broker id as the protocol says it: -1 if there is none."""
        known = self.controller.controller_id
        if not self.standing.is_heard and self.metadata.heard_controller is not None:
            known = self.metadata.heard_controller
        return -1 if known is None else known


class Request(NamedTuple):
    """One request: its header and where it came from."""

    header: RequestHeader
    listener: str
    peer_host: str

    @property
    def version(self) -> int:
        return self.header.version


@dataclass(frozen=True, slots=True)
class Failure:
    """An item of a request that failed: the code, and what to tell the client."""

    code: ErrorCode
    message: str
