"""The controller's requests to the brokers. A round is the handling of one event. The notifier
collects the changes of a round, and queues them for each live broker at the end of the round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from pybroker.coordinator.controller.channel import Backoff, BrokerSender, PendingWork
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.events import Event
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus
from pybroker.model import NO_LEADER, Broker, StopReplicaPartition, TopicPartition
from pybroker.ports import BrokerChannel
from pybroker.yield_every import yield_every

ChannelFactory = Callable[[Broker], BrokerChannel]


class BrokerNotifier:
    """Sends the partitions' states and metadata to the live brokers during one controller's term.
    Owns the senders, from `open` to `close`.

    `changed` has the partitions whose state was stored after the last `send_round`. A partition's
    value is True if the state node was also created after the last `send_round`.
    """

    def __init__(
        self,
        won: Won,
        context: ClusterContext,
        channels: ChannelFactory,
        enqueue: Callable[[Event], None],
        backoff: Backoff,
    ) -> None:
        self._won = won
        self._context = context
        self._channels = channels
        self._enqueue = enqueue
        self._backoff = backoff
        self._senders: dict[int, BrokerSender] = {}
        self._to_describe: set[TopicPartition] = set()
        self.changed: dict[TopicPartition, bool] = {}

    # ---- senders

    def open(self, broker_ids: Iterable[int]) -> None:
        """Start a sender for each of these live brokers. Then queue the list of all live brokers
        (UpdateMetadata) for every sender."""
        brokers = tuple(self._context.brokers[key] for key in sorted(self._context.brokers))
        for broker_id in broker_ids:
            broker = self._context.brokers[broker_id]
            work = PendingWork(broker, self._won.broker_id, self._won.epoch)
            sender = BrokerSender(
                broker, self._channels(broker), work, self._enqueue, self._backoff
            )
            self._senders[broker_id] = sender
            sender.start()
        for sender in self._senders.values():
            sender.work.set_brokers(brokers)

    async def move(self, broker_ids: Iterable[int]) -> None:
        """Connect to these live brokers at their new endpoints. The caller then has to call `open`,
        which tells all brokers the new endpoints."""
        for broker_id in broker_ids:
            broker = self._context.brokers[broker_id]
            await self._senders[broker_id].move(broker, self._channels(broker))

    async def close(self, broker_ids: Collection[int] | None = None) -> None:
        """Stop sending to these brokers (None: all). Idempotent."""
        keys = list(self._senders) if broker_ids is None else broker_ids
        closing = [self._senders.pop(key) for key in keys if key in self._senders]
        await asyncio.gather(*(sender.close() for sender in closing))

    # ---- news

    def changed_state(self, key: TopicPartition, *, created: bool = False) -> None:
        """Let the next `send_round` send the partition's state (LeaderAndIsr) and metadata
        (UpdateMetadata). `created`: the controller has just created the state node."""
        self.changed[key] = self.changed.get(key, False) or created

    def describe(self, keys: Iterable[TopicPartition]) -> None:
        """Let the next `send_round` send the metadata of these partitions to all brokers."""
        self._to_describe.update(keys)

    def describe_replicas_of(self, broker_ids: Collection[int]) -> None:
        """Let the next `send_round` send the metadata of all partitions with a replica on these
        brokers, because the offline replicas have changed."""
        if broker_ids:
            self._to_describe.update(
                partition.topic_partition
                for partition in self._context.kept_partitions()
                if not set(broker_ids).isdisjoint(partition.replicas)
            )

    def describe_now(self, partitions: Iterable[Partition]) -> None:
        """Queue the metadata of these partitions for all brokers."""
        for partition in partitions:
            facts = self._context.facts(partition)
            for sender in self._senders.values():
                sender.work.describe(facts)

    async def queue_current_state(self, broker_ids: Collection[int]) -> None:
        """Queue all metadata and all roles (leader or follower) for brokers that have received
        nothing from this controller. A partition that is not online is sent without a leader.
        Otherwise a restarted broker could lead the partition before the controller elects its
        leader."""
        if not broker_ids:
            return
        async for partition in yield_every(list(self._context.kept_partitions())):
            facts = self._context.facts(partition)
            if partition.status is not PartitionStatus.ONLINE:
                self._to_describe.add(partition.topic_partition)
                facts = replace(facts, state=replace(facts.state, leader=NO_LEADER))
            for broker_id in broker_ids:
                work = self._senders[broker_id].work
                work.describe(facts)
                if broker_id in partition.replicas and partition.state is not None:
                    work.lead_or_follow(facts)

    def queue_roles_again(self, broker_id: int) -> None:
        """Queue commands that tell the broker its role (leader or follower) in each of its
        partitions."""
        if broker_id not in self._senders:
            return  # a broker without a sender gets all roles when its sender is opened
        for partition in self._context.kept_partitions():
            if partition.state is not None and broker_id in partition.replicas:
                self._senders[broker_id].work.lead_or_follow(self._context.facts(partition))

    def queue_roles(self, broker_id: int, keys: Iterable[TopicPartition]) -> None:
        """Queue the broker's roles (leader or follower) in these partitions, even during its
        controlled shutdown."""
        for key in keys:
            facts = self._context.facts(self._context.partitions[key])
            self._senders[broker_id].work.lead_or_follow(facts)

    def stop(self, broker_id: int, stops: Iterable[StopReplicaPartition]) -> None:
        for each in stops:
            self._senders[broker_id].work.stop(each)

    async def send_round(self) -> None:
        """Queue the changes since the last call, and wake every sender. Brokers in controlled
        shutdown get UpdateMetadata for the changes, but no LeaderAndIsr."""
        changed, self.changed = self.changed, {}
        described, self._to_describe = self._to_describe | changed.keys(), set()
        async for key in yield_every(sorted(described)):
            partition = self._context.partitions.get(key)
            if partition is None or key.topic in self._context.deletions:
                continue
            self.describe_now([partition])
            if key in changed and partition.state is not None:
                facts = self._context.facts(partition, is_new=changed[key])
                for broker_id in self._context.staying(partition.replicas):
                    self._senders[broker_id].work.lead_or_follow(facts)
        for sender in self._senders.values():
            if not sender.work.is_complete:
                self._complete(sender)
            sender.wake()

    def _complete(self, sender: BrokerSender) -> None:
        """Let the sender send roles (LeaderAndIsr) and metadata of partitions (UpdateMetadata) from
        now on.

        A request with Extent.ALL makes the broker remove each replica or partition that the request
        does not name. So this method gives the first request of each kind Extent.ALL only if the
        controller knows all that the request has to name.
        """
        whole = not self._context.damaged
        lacks_state = any(
            partition.state is None and sender.broker.id in partition.replicas
            for partition in self._context.partitions.values()
        )
        sender.work.complete(full_roles=whole and not lacks_state, full_metadata=whole)
