"""The immutable values that the whole broker shares: partitions, brokers, and the controller's
commands."""

from __future__ import annotations

import base64
import binascii
import enum
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

NO_LEADER: Final = -1
LEADER_DURING_DELETION: Final = -2
NO_EPOCH: Final = -1
NO_TOPIC_ID: Final = uuid.UUID(int=0)
NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
TOPIC_NAME_LENGTH_MAX: Final = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """A partition of a topic. Its text is `TOPIC-PARTITION`, as in Kafka's logs and directory
    names."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a listener that the broker advertises to clients."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is registered in ZooKeeper. `epoch` is the czxid of its registration node
    (KIP-380). `incarnation` is the version of its node under /pybroker/incarnations (KIP-903). Each
    is -1 if unknown."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1
    incarnation: int = -1

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the broker's endpoint for the listener of that name, or None."""
        return next(
            (endpoint for endpoint in self.endpoints if endpoint.listener == listener), None
        )


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The content of a partition's state node in ZooKeeper. `eligible` are replicas outside the ISR
    that still have every committed record (KIP-966).

    Invariant: `leader` is in `isr`, or is NO_LEADER.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    eligible: tuple[int, ...] = ()


def is_orphaned(state: PartitionState) -> bool:
    """Whether the partition has no leader, no in-sync replica and no eligible replica, so that no
    replica is known to have every committed record."""
    return state.leader == NO_LEADER and not state.isr and not state.eligible


def isr_changed(state: PartitionState, isr: tuple[int, ...], required: int) -> PartitionState:
    """Return the state with `isr` as its ISR. If `isr` has fewer than `required` replicas, no
    record can be committed. In this case replicas that leave the ISR become eligible, and eligible
    replicas outside `isr` stay eligible (KIP-966). Otherwise no replica is eligible. `required`:
    min.insync.replicas, at most the number of replicas."""
    eligible: tuple[int, ...] = ()
    if len(isr) < required:
        kept = dict.fromkeys((*state.eligible, *state.isr))
        eligible = tuple(sorted(broker for broker in kept if broker not in isr))
    return replace(state, isr=isr, eligible=eligible)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition's state as the controller sends it to a broker. A leader changes the ISR only if
    the state node still has the version `partition_epoch`."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID
    state: PartitionState
    partition_epoch: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    is_new: bool = False


class Extent(enum.IntEnum):
    """Whether a command names only some partitions, names all partitions, or belongs to a series of
    commands that together name all partitions. The numbers are those of pybroker's own request
    field `extent`."""

    SOME = 0
    """The command names some partitions. All other partitions stay as they are."""
    ALL = 1
    """The command names all partitions."""
    BEGINS = 2
    """The command is the first of a series of commands that together name all partitions. GOES_ON
    marks the following ones, and ENDS the last one."""
    GOES_ON = 3
    ENDS = 4


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the controller to a broker. The broker rejects it with STALE_CONTROLLER_EPOCH or
    STALE_BROKER_EPOCH if an epoch is lower than the one that the broker knows."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsr(Command):
    """The command to lead or to follow `partitions`. After a complete list (see `Extent`), the
    broker's logs of all other partitions are strays."""

    partitions: tuple[PartitionFacts, ...] = ()
    extent: Extent = Extent.SOME


@dataclass(frozen=True, slots=True)
class UpdateMetadata(Command):
    """The command to update a broker's metadata. `brokers` has all live brokers. The broker forgets
    partitions whose leader is LEADER_DURING_DELETION and, after a complete list (see `Extent`), all
    partitions outside of the list."""

    partitions: tuple[PartitionFacts, ...] = ()
    brokers: tuple[Broker, ...] = ()
    extent: Extent = Extent.SOME


@dataclass(frozen=True, slots=True)
class StopReplicaPartition:
    """One partition of a StopReplica command. `leader_epoch` is LEADER_DURING_DELETION if the topic
    is being deleted. If `delete` is True, the broker deletes the replica's log."""

    topic_partition: TopicPartition
    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True)
class StopReplica(Command):
    """The command to stop serving these partitions, and to delete the logs of some."""

    partitions: tuple[StopReplicaPartition, ...] = ()


class Everything:
    """Collects the list of all partitions, which the controller sends in one command or in a series
    of commands (see `Extent`)."""

    def __init__(self) -> None:
        self._named: set[TopicPartition] | None = None

    def after(self, command: LeaderAndIsr | UpdateMetadata) -> set[TopicPartition] | None:
        """Process the controller's next command. The caller must pass every command, in the order
        of arrival. If `command` completes the list of all partitions, return the list. Otherwise
        return None."""
        extent = command.extent
        if extent is Extent.SOME:
            return None
        if extent in (Extent.ALL, Extent.BEGINS):
            self._named = set()
        if self._named is None:
            return None
        self._named.update(facts.topic_partition for facts in command.partitions)
        if extent not in (Extent.ALL, Extent.ENDS):
            return None
        named, self._named = self._named, None
        return named


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The content of a topic's node in ZooKeeper: for each partition the broker ids of its
    replicas, the preferred leader first."""

    name: str
    topic_id: uuid.UUID
    assignment: dict[int, tuple[int, ...]] = field(hash=False)


def topic_name_fault(name: str) -> str | None:
    """Return the reason why `name` cannot be a topic name, or None if it can (Kafka's rule: 1 to
    249 characters of [a-zA-Z0-9._-], not "." or "..")."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return f'the topic name may not be "{name}"'
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the topic name has {len(name)} characters, more than {TOPIC_NAME_LENGTH_MAX}"
    if not _TOPIC_NAME.fullmatch(name):
        return (
            f"the topic name {name!r} has characters other than letters, digits, '.', '_' and '-'"
        )
    return None


def collides(name: str, other: str) -> bool:
    """Whether two topic names are the same if '.' and '_' count as the same character, as in
    Kafka's metrics."""
    return name.replace(".", "_") == other.replace(".", "_")


def encode_uuid(value: uuid.UUID) -> str:
    """Return a UUID as text in Kafka's form: base64url without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Return the UUID in `text` (see `encode_uuid`). Raise ValueError if it is not 22 characters of
    base64url."""
    if len(text) != 22:
        raise ValueError(
            f"{text!r} is not a base64url UUID: it has {len(text)} characters, expected 22"
        )
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"{text!r} is not a base64url UUID: expected letters, digits, - and _"
        ) from error


class TransactionMarker(NamedTuple):
    """A marker that ends a producer's transaction in these partitions. `coordinator_epoch` is the
    leader epoch of the coordinator's partition of `__transaction_state`."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...] = ()
