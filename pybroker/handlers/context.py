"""The arguments of each handler: the request and the services of the broker."""

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
from pybroker.coordinator.transactions.service import TransactionService
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
from pybroker.replication.verification import TransactionVerification
from pybroker.wire.headers import RequestHeader

AUTO_CREATE_WAIT_S: Final = 1.0
"""How long (s) a Metadata or FindCoordinator request waits until a topic that it created has
leaders."""


class ControllerView(Protocol):
    """The methods of the controller that handlers call."""

    @property
    def controller_id(self) -> int | None:
        """The broker id of the current controller, or None if it is unknown."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""

    async def elect_leaders(
        self, election_type: ElectionType, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Election]:
        """Hold an election of type `election_type` in each partition. Raise BrokerError
        NOT_CONTROLLER if this broker is not the controller."""

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> tuple[TopicPartition, ...]:
        """Move the leaderships of a stopping broker to other brokers. Return the partitions that
        the stopping broker still leads. Raises BrokerError."""


class ZooKeeperLease(Protocol):
    """The broker's ZooKeeper lease. Each answer of ZooKeeper to a write or a sync extends the
    lease. Without a lease, the broker rejects each request whose answer would be wrong if another
    broker leads now, such as Produce with acks=1. In some cases, such as after a long pause of the
    process, it answers no request."""

    @property
    def is_valid(self) -> bool:
        """Whether ZooKeeper has answered recently enough, and the broker is registered in its
        current ZooKeeper session."""

    def check(self) -> None:
        """If the lease has expired, determine again which requests the broker may answer. Must be
        called for every request."""


class TopicAdmin(Protocol):
    """Creates, expands and deletes topics. Every method may raise BrokerError with the error code
    for the client."""

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
        """Ask the controller, through ZooKeeper, to delete the topic. If `topic_id` is given and is
        not the topic's id, raise BrokerError UNKNOWN_TOPIC_ID."""

    async def expand(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Add partitions until the topic has `count` partitions in total. `assignments` has the
        replicas of each new partition. If `assignments` is None, this method chooses the
        replicas."""

    async def wait_until_gone(self, name: str, timeout_s: float) -> bool:
        """Wait until the topic is deleted. Return False if it still exists after `timeout_s`."""

    async def stored_count(self, name: str) -> tuple[uuid.UUID | None, int] | None:
        """Return (topic id or None, number of partitions) from ZooKeeper, or None if the topic does
        not exist. Raise CoordError or MalformedNode."""


class InternalTopic(Protocol):
    """An internal topic in which coordinators store their state. Every method may raise BrokerError
    COORDINATOR_NOT_AVAILABLE."""

    @property
    def name(self) -> str: ...

    @property
    def is_known(self) -> bool:
        """Whether the topic's number of partitions is known. While it is unknown, `partition_of`
        fails."""

    def partition_of(self, key: str) -> int:
        """Return the partition to which a group id or transactional id maps."""

    def leader_of(self, partition: int) -> int:
        """Return the broker id of the partition's leader."""

    async def settle(self, wait_s: float) -> None:
        """Create the topic if it is missing, and wait at most `wait_s` seconds until its partitions
        have leaders."""


class Configs(Protocol):
    """The configurations of topics and brokers. A method that uses ZooKeeper may raise CoordError,
    or MalformedNode if the content of a node is not a valid configuration."""

    @property
    def layers(self) -> LayeredConfig:
        """The broker's options in force, each with the sources of its value."""

    async def read(self, entity: ConfigEntity) -> dict[str, str]:
        """Return the values (option -> text) that ZooKeeper has for a topic, a broker or all
        brokers."""

    async def change_topic(self, name: str, change: Change, *, replaces: bool) -> bool:
        """Replace the topic's values in ZooKeeper by `change(current values)`. If `replaces` is
        True, `change` gets no values, and a malformed node is overwritten. Return False if the
        topic does not exist."""

    async def change_broker(self, broker_id: int | None, change: Change, *, replaces: bool) -> None:
        """Replace the dynamic values of broker `broker_id` (None: the cluster-wide default
        values) by the result of `change`. The arguments `change` and `replaces` are as in
        `change_topic`."""


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """The topic that a request created, or would create if the request is only validated."""

    topic_id: uuid.UUID
    assignment: Mapping[int, Sequence[int]]
    configs: Sequence[ConfigEntry]


def _nothing() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the broker that handlers call."""

    broker_id: int
    cluster_id: str
    config: BrokerConfig
    replicas: ReplicaManager
    mover: ReplicaMover
    metadata: MetadataView
    controller: ControllerView
    commands: BrokerChannel
    """Carries out, on this broker, the commands that a controller has sent to it."""
    lead_now: LeadNow
    prove_controller: Callable[[int], Awaitable[None]]
    """Called with a controller epoch. Raises BrokerError unless there has been a controller with
    that epoch."""
    topics: TopicAdmin
    group_topic: InternalTopic
    groups: GroupService
    transaction_topic: InternalTopic
    transactions: TransactionService
    classic_offsets: ClassicOffsets
    configs: Configs
    producer_ids: Callable[[], Awaitable[int]]
    verification: TransactionVerification
    clock: Clock
    blocking: Blocking
    metrics: Metrics
    fetch_sessions: FetchSessionCache
    log_limit: LogLimit
    """Limits the number of log lines that clients can cause."""
    lease: ZooKeeperLease
    unsent_bytes: Callable[[], int] = _nothing
    """Returns the size (bytes) of all responses that are still in memory because their clients read
    too slowly."""

    @property
    def controller_id(self) -> int:
        """The controller's broker id, or -1 if it is unknown, as in the protocol."""
        known = self.controller.controller_id
        if not self.lease.is_valid and self.metadata.discovered_controller is not None:
            known = self.metadata.discovered_controller
        return -1 if known is None else known


class Request(NamedTuple):
    """One request: its header, the name of its listener, and the client's host."""

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
