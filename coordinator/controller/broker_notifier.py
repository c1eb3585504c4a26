"""What the brokers are told, and when: news are collected while a round lasts, and handed over at
its end, one command of a kind for each broker.

Owns a sender for every live broker. What is decided, and why, is none of this module's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from pybroker.coordinator.controller.channel import Backoff, BrokerSender, PendingWork
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.events import Event
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus
from pybroker.coordinator.controller.yield_every import yield_every
from pybroker.model import NO_LEADER, Broker, StopReplicaPartition, TopicPartition
from pybroker.ports import BrokerChannel

ChannelFactory = Callable[[Broker], BrokerChannel]


class BrokerNotifier:
    """Of one term. Owns the senders, from `open` to `close`.

    `changed`: partitions whose state was stored in this round -> whether its node was created.
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
        """Begin to tell these live brokers, and tell all of them who is alive now."""
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
        """These live brokers have other endpoints: reach them there. `open` tells all of them."""
        for broker_id in broker_ids:
            broker = self._context.brokers[broker_id]
            await self._senders[broker_id].move(broker, self._channels(broker))

    async def close(self, broker_ids: Collection[int] | None = None) -> None:
        """Stop telling these brokers anything (None: all). Idempotent."""
        keys = list(self._senders) if broker_ids is None else broker_ids
        closing = [self._senders.pop(key) for key in keys if key in self._senders]
        await asyncio.gather(*(sender.close() for sender in closing))

    # ---- news

    def changed_state(self, key: TopicPartition, *, created: bool = False) -> None:
        """Tell its live replicas what is stored, and everybody who leads."""
        self.changed[key] = self.changed.get(key, False) or created

    def describe(self, keys: Iterable[TopicPartition]) -> None:
        """Tell everybody of these partitions at the end of the round."""
        self._to_describe.update(keys)

    def describe_replicas_of(self, broker_ids: Collection[int]) -> None:
        """Which replicas are offline has changed where one of these brokers has a replica."""
        if broker_ids:
            self._to_describe.update(
                partition.topic_partition
                for partition in self._context.kept_partitions()
                if not set(broker_ids).isdisjoint(partition.replicas)
            )

    def describe_now(self, partitions: Iterable[Partition]) -> None:
        """Tell everybody of these partitions as they are at this moment."""
        for partition in partitions:
            facts = self._context.facts(partition)
            for sender in self._senders.values():
                sender.work.describe(facts)

    async def tell_current_state(self, broker_ids: Collection[int]) -> None:
        """These brokers know nothing yet: all metadata, and what they lead or follow. What still
        needs a leader is told to all when this round has tried to give it one; until then nobody
        leads it, least of all a broker that did before it was started again."""
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

    def tell_roles_again(self, broker_id: int) -> None:
        """What the broker leads and follows, although it was told before."""
        if broker_id not in self._senders:
            return  # it will be told all anyway
        for partition in self._context.kept_partitions():
            if partition.state is not None and broker_id in partition.replicas:
                self._senders[broker_id].work.lead_or_follow(self._context.facts(partition))

    def tell_roles(self, broker_id: int, keys: Iterable[TopicPartition]) -> None:
        """What the broker leads and follows of these; for one that is about to stop and is told
        nothing otherwise."""
        for key in keys:
            facts = self._context.facts(self._context.partitions[key])
            self._senders[broker_id].work.lead_or_follow(facts)

    def stop(self, broker_id: int, stops: Iterable[StopReplicaPartition]) -> None:
        for each in stops:
            self._senders[broker_id].work.stop(each)

    async def tell(self) -> None:
        """The round is over: hand over what it changed, and wake every sender. Brokers that are
        about to stop get no new roles."""
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
        """What the broker has beyond this is left over from topics that are gone; but where we do
        not know all ourselves, it must not think so."""
        whole = not self._context.damaged
        untold = any(
            partition.state is None and sender.broker.id in partition.replicas
            for partition in self._context.partitions.values()
        )
        sender.work.complete(full_roles=whole and not untold, full_metadata=whole)
