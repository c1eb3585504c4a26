"""The controller's picture of the cluster: live brokers, topics, partitions, deletions under way.

One owner, the controller's consumer task, changes it; everything that it hands out is immutable.
The picture is never authority: every write is conditional on what was read.
"""

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
    """Invariant: `partitions` holds the partitions of `topics`, except those whose state node is
    damaged; `deletions` names only topics that are in `topics`."""

    controller_epoch: int
    brokers: dict[int, Broker] = field(default_factory=dict)
    topics: dict[str, TopicDescription] = field(default_factory=dict)
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    deletions: dict[str, Deletion] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    """Topics of which not everything could be read or taken up."""
    unclean_elections: int = 0
    """Leaders chosen outside the in-sync replicas, in this term."""
    unclean_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """Leader epochs that such a choice began: the last one of a partition."""
    failed_log_dirs: set[int] = field(default_factory=set)
    """Live brokers that have lost a log directory."""
    offline: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Replicas that a live broker cannot open, by broker."""
    yielding: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """Brokers that could lead and have said that they would rather not: others come first."""
    stale: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)
    """Members of the ISR whose broker ended, or started anew, since it was known to be in sync: to
    be taken out. Kept until that is stored, whatever fails in between."""
    leaving: set[int] = field(default_factory=set)
    """Live brokers that have asked to hand over what they lead, since they will stop."""
    _by_topic: dict[str, dict[int, Partition]] = field(default_factory=dict)

    def put_topic(self, topic: TopicDescription) -> None:
        """Take note of a topic; partitions that are new to us are put with `put_partition`."""
        self.topics[topic.name] = topic
        self._by_topic.setdefault(topic.name, {})

    def put_partition(self, partition: Partition) -> None:
        self.partitions[partition.topic_partition] = partition
        self._by_topic[partition.topic_partition.topic][partition.topic_partition.partition] = (
            partition
        )

    def drop_topic(self, name: str) -> None:
        """Forget a topic, its partitions and its deletion. No error if it is not known."""
        self.topics.pop(name, None)
        self.deletions.pop(name, None)
        self.damaged.discard(name)
        for partition in self._by_topic.pop(name, {}).values():
            del self.partitions[partition.topic_partition]
            self.stale.pop(partition.topic_partition, None)
            self.yielding.pop(partition.topic_partition, None)
            self.unclean_epochs.pop(partition.topic_partition, None)

    def partitions_of(self, topic: str) -> list[Partition]:
        """Sorted by partition number; empty for a topic that is not known."""
        return [partition for _, partition in sorted(self._by_topic.get(topic, {}).items())]

    def kept_partitions(self) -> Iterator[Partition]:
        """All partitions except those of topics that are being deleted."""
        return (
            partition
            for name, partitions in self._by_topic.items()
            if name not in self.deletions
            for partition in partitions.values()
        )

    def facts(self, partition: Partition, *, is_new: bool = False) -> PartitionFacts:
        """What brokers are told of it; a partition of a topic that is being deleted is told with
        LEADER_DURING_DELETION, one that was never led without a leader."""
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
        """The live brokers, without those that cannot open their replica of the partition."""
        if not self.offline:
            return self.brokers
        key = partition.topic_partition
        return [broker for broker in self.brokers if key not in self.offline.get(broker, ())]

    def candidates_of(self, partition: Partition) -> Collection[int]:
        """Of `hosts_of` those that stay: who may be elected."""
        hosts = self.hosts_of(partition)
        if not self.leaving:
            return hosts
        return [broker for broker in hosts if broker not in self.leaving]

    def is_disturbed(self, partition: Partition) -> bool:
        """Whether it has no leader, members of the ISR that do not stay in sync, or once had some
        and is not safe without them yet: only then its topic's policy counts."""
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
        """Those on live brokers that are not about to stop."""
        return tuple(
            replica
            for replica in replicas
            if replica in self.brokers and replica not in self.leaving
        )
