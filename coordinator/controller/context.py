"""The controller's view of the cluster. Only the task that handles the controller's events changes
the view. The view may be out of date, so every write to ZooKeeper is conditional on the version
that was read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pybroker.coordinator.controller.deletion import Deletion
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus
from pybroker.model import (
    LEADER_DURING_DELETION,
    NO_EPOCH,
    NO_LEADER,
    NO_TOPIC_ID,
    Broker,
    PartitionFacts,
    PartitionState,
    TopicDescription,
    TopicPartition,
)


@dataclass(slots=True)
class ClusterContext:
    """The controller's view of the cluster. `partitions` has all partitions of `topics`, except
    those whose state node is damaged. `deletions` names only topics in `topics`."""

    controller_epoch: int
    brokers: dict[int, Broker] = field(default_factory=dict)
    topics: dict[str, TopicDescription] = field(default_factory=dict)
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    deletions: dict[str, Deletion] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    """Topics whose node cannot be parsed, or whose topic id is not stored."""
    unclean_elections: int = 0
    """The number of elections in this term whose leader was neither in the ISR nor an eligible
    leader replica (KIP-966)."""
    unclean_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """Partition -> the leader epoch of its latest unclean election."""
    failed_log_dirs: set[int] = field(default_factory=set)
    """Live brokers that have lost a log directory."""
    offline: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Broker -> the partitions whose replica the live broker cannot open."""
    yielding: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """Partition -> the brokers that refused to lead it: other replicas are preferred as leaders."""
    stale: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)
    """Partition -> the ISR members whose brokers ended or restarted since the members were last in
    sync. The controller has to remove them from the ISR. An entry is kept until the smaller ISR is
    stored."""
    leaving: set[int] = field(default_factory=set)
    """Live brokers in controlled shutdown."""
    _by_topic: dict[str, dict[int, Partition]] = field(default_factory=dict)

    def put_topic(self, topic: TopicDescription) -> None:
        """Add or replace the topic. This does not add the topic's partitions; `put_partition`
        does."""
        self.topics[topic.name] = topic
        self._by_topic.setdefault(topic.name, {})

    def put_partition(self, partition: Partition) -> None:
        self.partitions[partition.topic_partition] = partition
        self._by_topic[partition.topic_partition.topic][partition.topic_partition.partition] = (
            partition
        )

    def drop_topic(self, name: str) -> None:
        """Remove a topic and its partitions. If the topic is being deleted, remove the record of
        the deletion too. The topic may be unknown."""
        self.topics.pop(name, None)
        self.deletions.pop(name, None)
        self.damaged.discard(name)
        for partition in self._by_topic.pop(name, {}).values():
            del self.partitions[partition.topic_partition]
            self.stale.pop(partition.topic_partition, None)
            self.yielding.pop(partition.topic_partition, None)
            self.unclean_epochs.pop(partition.topic_partition, None)

    def partitions_of(self, topic: str) -> list[Partition]:
        """Return the topic's partitions in order of number; empty for an unknown topic."""
        return [partition for _, partition in sorted(self._by_topic.get(topic, {}).items())]

    def kept_partitions(self) -> Iterator[Partition]:
        """Return all partitions except those of topics that are being deleted."""
        return (
            partition
            for name, partitions in self._by_topic.items()
            if name not in self.deletions
            for partition in partitions.values()
        )

    def facts(self, partition: Partition, *, is_new: bool = False) -> PartitionFacts:
        """Return the facts that brokers need about the partition. The leader is
        LEADER_DURING_DELETION if the topic is being deleted, else NO_LEADER if the partition has no
        stored state. `is_new`: the controller has just created the state node."""
        name = partition.topic_partition.topic
        state = partition.state or PartitionState(NO_LEADER, NO_EPOCH, (), self.controller_epoch)
        if name in self.deletions:
            state = PartitionState(
                LEADER_DURING_DELETION, state.leader_epoch, (), self.controller_epoch
            )
        topic = self.topics.get(name)
        hosts = self.candidates_of(partition)
        return PartitionFacts(
            topic_partition=partition.topic_partition,
            topic_id=NO_TOPIC_ID if topic is None else topic.topic_id,
            state=state,
            partition_epoch=partition.version,
            replicas=partition.replicas,
            offline_replicas=tuple(
                replica for replica in partition.replicas if replica not in hosts
            ),
            is_new=is_new,
        )

    def hosts_of(self, partition: Partition) -> Collection[int]:
        """Return all live brokers, with or without a replica of the partition, except those that
        cannot open their replica."""
        if not self.offline:
            return self.brokers
        key = partition.topic_partition
        return [broker for broker in self.brokers if key not in self.offline.get(broker, ())]

    def candidates_of(self, partition: Partition) -> Collection[int]:
        """Return all live brokers, except those in controlled shutdown or with an offline replica
        of the partition."""
        hosts = self.hosts_of(partition)
        if not self.leaving:
            return hosts
        return [broker for broker in hosts if broker not in self.leaving]

    def needs_topic_options(self, partition: Partition) -> bool:
        """Whether a decision about the partition may need the topic's min.insync.replicas and
        unclean.leader.election.enable. True if the partition has a stored state, and one of these
        holds:

        - the partition is not online;
        - an ISR member is in `stale`;
        - an ISR member cannot become leader now (see `candidates_of`);
        - the partition has eligible leader replicas (KIP-966).
        """
        if partition.state is None:
            return False
        candidates = self.candidates_of(partition)
        return (
            partition.status is not PartitionStatus.ONLINE
            or partition.topic_partition in self.stale
            or bool(partition.state.eligible)
            or any(replica not in candidates for replica in partition.state.isr)
        )

    def staying(self, replicas: Iterable[int]) -> tuple[int, ...]:
        """Return the replicas on live brokers that are not in controlled shutdown."""
        return tuple(
            replica
            for replica in replicas
            if replica in self.brokers and replica not in self.leaving
        )
