"""This broker's metadata of the cluster. UpdateMetadata commands change it. While ZooKeeper does
not answer, other brokers' Metadata responses change it, too (leader discovery)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import (
    LEADER_DURING_DELETION,
    Broker,
    Everything,
    PartitionFacts,
    TopicPartition,
    UpdateMetadata,
)


@dataclass(slots=True)
class TopicView:
    """A topic: its name, its id, and for each partition number the state of the partition."""

    name: str
    topic_id: uuid.UUID
    partitions: dict[int, PartitionFacts] = field(default_factory=dict)


class MetadataView:
    """The metadata of the cluster as this broker knows it. Used on the event loop only. Every
    change increments `version`."""

    def __init__(self) -> None:
        self.version = 0
        self._controller_epoch = -1
        self.discovered_controller: int | None = None
        """The id of the controller according to another broker's Metadata response; None if an
        UpdateMetadata has arrived since."""
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, TopicView] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._all = Everything()
        self._changed: set[asyncio.Future[None]] = set()
        self.on_deleted: Callable[[Collection[str]], None] = lambda _: None
        """Called with the names of topics when the controller begins to delete them."""

    @property
    def brokers(self) -> Mapping[int, Broker]:
        return self._brokers

    def broker(self, broker_id: int) -> Broker | None:
        """Return the live broker with this id, or None."""
        return self._brokers.get(broker_id)

    @property
    def topics(self) -> Mapping[str, TopicView]:
        return self._topics

    def topic(self, name: str) -> TopicView | None:
        return self._topics.get(name)

    def exists(self, topic_partition: TopicPartition) -> bool:
        """Whether the cluster has the partition, as far as this broker knows."""
        topic = self._topics.get(topic_partition.topic)
        return topic is not None and topic_partition.partition in topic.partitions

    def is_led_after(self, topic_partition: TopicPartition, leader_epoch: int) -> bool:
        """Whether the partition has a live leader with a later leader epoch than `leader_epoch`."""
        topic = self._topics.get(topic_partition.topic)
        facts = None if topic is None else topic.partitions.get(topic_partition.partition)
        return (
            facts is not None
            and facts.state.leader_epoch > leader_epoch
            and facts.state.leader in self._brokers
        )

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with this id, or None."""
        return self._names.get(topic_id)

    def apply(self, command: UpdateMetadata) -> None:
        """Apply an UpdateMetadata command. Raise BrokerError STALE_CONTROLLER_EPOCH if a command
        with a higher controller epoch has been applied already."""
        if command.controller_epoch < self._controller_epoch:
            raise BrokerError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"the command has controller epoch {command.controller_epoch}, but the "
                f"current controller has epoch {self._controller_epoch}",
            )
        self._controller_epoch = command.controller_epoch
        self.discovered_controller = None
        self._brokers = {broker.id: broker for broker in command.brokers}
        deleted = set()
        for facts in command.partitions:
            if facts.state.leader == LEADER_DURING_DELETION:
                self._forget(facts.topic_partition)
                deleted.add(facts.topic_partition.topic)
            else:
                self._learn(facts)
        existing = self._all.after(command)
        if existing is not None:
            self._forget_others(existing)
        if deleted:
            self.on_deleted(deleted)
        self._has_changed()

    def apply_discovered_leader(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        leader: int,
        leader_epoch: int,
        isr: tuple[int, ...],
    ) -> bool:
        """Apply the leader from another broker's Metadata response, if `leader_epoch` is later and
        `leader` is a known broker. Return False only if this broker does not know the partition
        with this `topic_id`."""
        topic = self._topics.get(topic_partition.topic)
        facts = None if topic is None else topic.partitions.get(topic_partition.partition)
        if topic is None or facts is None or topic.topic_id != topic_id:
            return False
        if leader_epoch > facts.state.leader_epoch and leader in self._brokers:
            state = replace(facts.state, leader=leader, leader_epoch=leader_epoch, isr=isr)
            topic.partitions[topic_partition.partition] = replace(facts, state=state)
            self._has_changed()
        return True

    def apply_discovered_controller(self, broker_id: int) -> None:
        """Apply the controller that another broker's Metadata response names. Do nothing if
        `broker_id` is not a known broker."""
        if broker_id in self._brokers and broker_id != self.discovered_controller:
            self.discovered_controller = broker_id
            self._has_changed()

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition`, checked after each change of the metadata, is True. Return False
        if it is still False after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not condition():
            remaining = deadline - loop.time()
            if remaining <= 0:
                return False
            future: asyncio.Future[None] = loop.create_future()
            self._changed.add(future)
            try:
                await asyncio.wait_for(future, remaining)
            except TimeoutError:
                return condition()
            finally:
                self._changed.discard(future)
        return True

    def _has_changed(self) -> None:
        self.version += 1
        for future in self._changed:
            if not future.done():
                future.set_result(None)
        self._changed.clear()

    def _learn(self, facts: PartitionFacts) -> None:
        name = facts.topic_partition.topic
        topic = self._topics.get(name)
        if topic is None or topic.topic_id != facts.topic_id:
            if topic is not None:
                self._names.pop(topic.topic_id, None)
            topic = self._topics[name] = TopicView(name, facts.topic_id)
            self._names[facts.topic_id] = name
        topic.partitions[facts.topic_partition.partition] = facts

    def _forget_others(self, existing: Collection[TopicPartition]) -> None:
        known = (
            TopicPartition(topic.name, number)
            for topic in self._topics.values()
            for number in topic.partitions
        )
        for partition in [each for each in known if each not in existing]:
            self._forget(partition)

    def _forget(self, partition: TopicPartition) -> None:
        topic = self._topics.get(partition.topic)
        if topic is None:
            return
        topic.partitions.pop(partition.partition, None)
        if not topic.partitions:
            del self._topics[partition.topic]
            self._names.pop(topic.topic_id, None)
