"""What an elected controller does, from taking over to being closed: one handler an event.

Each handler reads what is true now, lets the pure parts decide, stores the decisions, and leaves
the news for the brokers with their senders. Handlers run one after the other, in the controller's
consumer task; nothing else changes the context. When a handler fails half-way it may be run again:
what is done stays done, and what was not told is told next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from pybroker.coordinator.controller.channel import Backoff, BrokerSender, PendingWork
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.deletion import Deletion, remove_topic
from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.events import (
    BrokersChanged,
    DeletionRequested,
    Event,
    LogDirsFailed,
    ReplicasAccepted,
    ReplicasDeleted,
    ReplicasRefused,
    Retry,
    TopicChanged,
    TopicsChanged,
)
from pybroker.coordinator.controller.failover import Loader, Watches
from pybroker.coordinator.controller.log_dirs import LogDirFailures
from pybroker.coordinator.controller.partitions import (
    Partition,
    PartitionStatus,
    StateWrite,
    decide_online,
)
from pybroker.coordinator.controller.reading import (
    read_brokers,
    read_deletion_requests,
    read_topic_names,
    read_topics,
)
from pybroker.coordinator.controller.replicas import decide_loss
from pybroker.coordinator.controller.transitions import StateMachine
from pybroker.coordinator.controller.writes import FencedWriter, Write
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ConnectionLoss, CoordError, NoNode
from pybroker.model import (
    LEADER_DURING_DELETION,
    Broker,
    StopReplicaPartition,
    TopicDescription,
    TopicPartition,
)
from pybroker.ports import BrokerChannel, Coord, DeleteOp, Rng, WatchEvent

logger = logging.getLogger(__name__)

ChannelFactory = Callable[[Broker], BrokerChannel]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`delete_topic_enable` as Kafka's delete.topic.enable; `backoff` for everything that is tried
    again; `stop_timeout_s` is how long resigning may take."""

    delete_topic_enable: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    stop_timeout_s: float = 3.0


class Reign:
    """One term of office. Owns the senders and a retry timer, from `begin` to `close`."""

    def __init__(
        self,
        coord: Coord,
        won: Won,
        channels: ChannelFactory,
        settings: ControllerSettings,
        rng: Rng,
        enqueue: Callable[[Event], None],
    ) -> None:
        self.won = won
        self.context = ClusterContext(won.epoch)
        self._coord = coord
        self._channels = channels
        self._settings = settings
        self._enqueue = enqueue
        self._writer = FencedWriter(coord, won.epoch_version)
        self._machine = StateMachine(coord, self._writer, self.context)
        self._watches = Watches(
            brokers=lambda _: enqueue(BrokersChanged()),
            topics=lambda _: enqueue(TopicsChanged()),
            topic=self._topic_changed,
            deletions=lambda _: enqueue(DeletionRequested()),
        )
        self._loader = Loader(coord, self._writer, self.context, self._watches, rng)
        self._log_dirs = LogDirFailures(
            coord,
            self._writer,
            self.context,
            lambda _: enqueue(LogDirsFailed()),
            self._tell_roles_again,
        )
        self._senders: dict[int, BrokerSender] = {}
        self._to_describe: set[TopicPartition] = set()
        self._events_to_repeat: set[Event] = set()
        self._removals_to_repeat: set[str] = set()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retries = 0

    # ---- life

    async def begin(self) -> None:
        """Take over. The brokers hear of the live brokers before anything else.

        Raises ControllerMoved, or CoordError; then close this and stand for election again.
        """
        deletions, left_out = await self._loader.load()
        self._repeat_if(left_out, TopicsChanged())
        await self._log_dirs.take()
        self._open_senders(self.context.brokers)
        self._start_deletions(deletions & self.context.topics.keys())
        self._tell_current_state(self.context.brokers)
        await self._repair(self.context.partitions)
        if deletions:
            await self._deletion_requested()
        self._tell()

    async def handle(self, event: Event) -> None:
        """Raises ControllerMoved, or CoordError; after ConnectionLoss the event may be handled
        again."""
        match event:
            case BrokersChanged():
                await self._brokers_changed()
            case TopicsChanged():
                await self._topics_changed()
            case TopicChanged():
                await self._one_topic_changed(event.topic)
            case DeletionRequested():
                await self._deletion_requested()
            case ReplicasDeleted():
                await self._replicas_deleted(event)
            case LogDirsFailed():
                await self._log_dirs.take()
            case ReplicasRefused() | ReplicasAccepted():
                await self._replicas_answered(event)
            case Retry():
                await self._retry()
        self._tell()

    async def close(self) -> None:
        """Stop telling brokers anything. Idempotent."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        senders, self._senders = self._senders, {}
        await asyncio.gather(*(sender.close() for sender in senders.values()))

    # ---- brokers

    async def _brokers_changed(self) -> None:
        """A broker that is registered anew was lost and has started (KIP-380)."""
        current = await read_brokers(self._coord, self._watches.brokers)
        before = self.context.brokers
        lost = {
            broker_id
            for broker_id, broker in before.items()
            if broker_id not in current or current[broker_id].epoch != broker.epoch
        }
        started = {
            broker_id for broker_id in current if broker_id not in before or broker_id in lost
        }
        if lost:
            logger.info("brokers_lost brokers=%s", sorted(lost))
            await self._brokers_lost(lost)
        if started:
            logger.info("brokers_started brokers=%s", sorted(started))
        self.context.brokers = current
        await self._close_senders(lost)
        self._open_senders(started)
        self._describe_replicas_of(lost | started)
        self._tell_current_state(started)
        if started:
            await self._repair(
                partition.topic_partition
                for partition in self.context.kept_partitions()
                if partition.status is not PartitionStatus.ONLINE
            )
        self._stop_deleted_replicas(started)
        await self._finish_deletions()

    async def _brokers_lost(self, lost: set[int]) -> None:
        context = self.context
        context.brokers = {
            broker_id: broker
            for broker_id, broker in context.brokers.items()
            if broker_id not in lost
        }
        self._log_dirs.forget(lost)
        for name, deletion in context.deletions.items():
            for broker_id in lost:
                deletion = deletion.without_broker(broker_id)
            context.deletions[name] = deletion
        affected = []
        for partition in list(context.kept_partitions()):
            if partition.state is None or lost.isdisjoint(partition.state.isr):
                continue
            affected.append(partition.topic_partition)
            if partition.state.leader in lost:
                context.put_partition(partition.moved(PartitionStatus.OFFLINE))
        await self._machine.move(
            affected,
            lambda partition: decide_loss(
                partition, lost, context.hosts_of(partition), context.controller_epoch
            ),
        )

    def _open_senders(self, broker_ids: Iterable[int]) -> None:
        brokers = tuple(self.context.brokers[key] for key in sorted(self.context.brokers))
        for broker_id in broker_ids:
            broker = self.context.brokers[broker_id]
            work = PendingWork(broker, self.won.broker_id, self.won.epoch)
            sender = BrokerSender(
                broker, self._channels(broker), work, self._enqueue, self._settings.backoff
            )
            self._senders[broker_id] = sender
            sender.start()
        for sender in self._senders.values():
            sender.work.set_brokers(brokers)

    async def _close_senders(self, broker_ids: Iterable[int]) -> None:
        closing = [self._senders.pop(key) for key in broker_ids if key in self._senders]
        await asyncio.gather(*(sender.close() for sender in closing))

    # ---- topics

    def _topic_changed(self, event: WatchEvent) -> None:
        name = paths.parse_topic(event.path)
        if name is not None:
            self._enqueue(TopicChanged(name))

    async def _topics_changed(self) -> None:
        names = await read_topic_names(self._coord, self._watches.topics)
        for name in self.context.topics.keys() - names:
            self._forget_topic(name)
        fresh = names - self.context.topics.keys()
        left_out = await self._loader.add_topics(fresh)
        self._repeat_if(left_out, TopicsChanged())
        await self._open_topics(fresh & self.context.topics.keys())

    async def _open_topics(self, names: Iterable[str]) -> None:
        """Lead the partitions of topics that the context has just taken up."""
        keys = [
            partition.topic_partition
            for name in names
            for partition in self.context.partitions_of(name)
        ]
        self._to_describe.update(keys)
        for key in keys:
            self._machine.changed.setdefault(key, False)
        await self._repair(keys)

    async def _one_topic_changed(self, name: str) -> None:
        nodes, damaged = await read_topics(self._coord, [name], self._watches.topic)
        known = self.context.topics.get(name)
        node = nodes.get(name)
        if name in damaged:
            return
        if known is not None and node is None:
            self._forget_topic(name)
        if known is None or node is None:
            await self._topics_changed()
            return
        if node.assignment.topic_id not in (None, known.topic_id):
            logger.warning("topic_replaced topic=%s", name)
            self._forget_topic(name)
            await self._topics_changed()
            return
        identified = await self._loader.identify([node])
        self._repeat_if({name} - identified.keys(), TopicChanged(name))
        if name in identified and name not in self.context.deletions:
            await self._grow_topic(identified[name])

    async def _grow_topic(self, found: TopicDescription) -> None:
        name, known = found.name, self.context.topics[found.name].assignment
        merged = {**found.assignment, **known}
        if any(found.assignment.get(key) != known[key] for key in known):
            logger.warning("assignment_change_ignored topic=%s", name)
        added = [TopicPartition(name, key) for key in sorted(merged.keys() - known.keys())]
        if not added:
            return
        logger.info("topic_grows topic=%s partitions=%d added=%d", name, len(merged), len(added))
        grown = TopicDescription(name, found.topic_id, merged)
        await self._loader.grow_topic(grown, added)
        self._to_describe.update(added)
        await self._repair(added)

    def _forget_topic(self, name: str) -> None:
        """The nodes of the topic are gone, whoever removed them: brokers forget it."""
        logger.info("topic_gone topic=%s", name)
        self.context.deletions[name] = Deletion(name)
        self._describe_to_all(self.context.partitions_of(name))
        self.context.drop_topic(name)

    # ---- deletion

    async def _deletion_requested(self) -> None:
        requested = await read_deletion_requests(self._coord, self._watches.deletions)
        if not self._settings.delete_topic_enable:
            await self._drop_requests(requested)
            return
        if requested - self.context.topics.keys():
            await self._topics_changed()
        names = await read_topic_names(self._coord, self._watches.topics)
        await self._drop_requests(requested - names)
        self._start_deletions(requested & self.context.topics.keys())
        await self._finish_deletions()

    async def _drop_requests(self, names: Collection[str]) -> None:
        if not names:
            return
        logger.warning("topic_deletion_refused topics=%s", sorted(names))
        outcomes = await self._writer.write_all(
            [Write((DeleteOp(paths.delete_topic(name)),)) for name in names]
        )
        failed = [
            outcome
            for outcome in outcomes
            if isinstance(outcome, CoordError) and not isinstance(outcome, NoNode)
        ]
        self._repeat_if(failed, DeletionRequested())

    def _start_deletions(self, names: Iterable[str]) -> None:
        if not self._settings.delete_topic_enable:
            return
        for name in set(names) - self.context.deletions.keys():
            logger.info("topic_deletion_started topic=%s", name)
            self.context.deletions[name] = Deletion(name)
            self._describe_to_all(self.context.partitions_of(name))
            self._stop_replicas(name, self.context.brokers)

    def _stop_deleted_replicas(self, broker_ids: Collection[int]) -> None:
        for name in self.context.deletions:
            self._stop_replicas(name, broker_ids)

    def _stop_replicas(self, name: str, broker_ids: Iterable[int]) -> None:
        for broker_id in broker_ids:
            keys = [
                TopicPartition(name, number)
                for number, replicas in self.context.topics[name].assignment.items()
                if broker_id in replicas
            ]
            deletion = self.context.deletions[name]
            self.context.deletions[name] = deletion.expecting(broker_id, keys)
            for key in keys:
                stop = StopReplicaPartition(key, LEADER_DURING_DELETION, delete=True)
                self._senders[broker_id].work.stop(stop)

    async def _replicas_deleted(self, event: ReplicasDeleted) -> None:
        broker = self.context.brokers.get(event.broker_id)
        if broker is None or broker.epoch != event.broker_epoch:
            return
        for name in {key.topic for key in event.topic_partitions}:
            deletion = self.context.deletions.get(name)
            if deletion is not None:
                self.context.deletions[name] = deletion.confirmed(
                    event.broker_id, event.topic_partitions
                )
        await self._finish_deletions()

    async def _finish_deletions(self) -> None:
        for name, deletion in list(self.context.deletions.items()):
            if not deletion.is_confirmed:
                continue
            if await self._remove_topic(name):
                logger.info("topic_deleted topic=%s", name)
                self.context.drop_topic(name)
            else:
                self._removals_to_repeat.add(name)

    async def _remove_topic(self, name: str) -> bool:
        try:
            return await remove_topic(self._coord, self._writer, name)
        except ConnectionLoss as error:
            logger.warning("topic_removal_interrupted topic=%s reason=%r", name, error)
            return False

    # ---- log directories

    async def _replicas_answered(self, event: ReplicasRefused | ReplicasAccepted) -> None:
        changed = self._log_dirs.answered(event)
        self._to_describe.update(changed)
        await self._repair(changed)

    def _tell_roles_again(self, broker_id: int) -> None:
        if broker_id not in self._senders:
            return  # it will be told all anyway
        for partition in self.context.kept_partitions():
            if partition.state is not None and broker_id in partition.replicas:
                self._senders[broker_id].work.lead_or_follow(self.context.facts(partition))

    # ---- moves and retries

    async def _repair(self, keys: Iterable[TopicPartition]) -> None:
        """Bring the partitions to the best state that the live brokers allow."""
        kept = [key for key in keys if key.topic not in self.context.deletions]
        await self._machine.move(kept, self._decide_repair)

    def _decide_repair(self, partition: Partition) -> StateWrite | None:
        live, epoch = self.context.hosts_of(partition), self.context.controller_epoch
        if partition.status is not PartitionStatus.ONLINE:
            online = decide_online(partition, live, epoch)
            if online is not None:
                return online
        dead = [replica for replica in partition.replicas if replica not in live]
        return decide_loss(partition, dead, live, epoch)

    def _repeat_if(self, reasons: Collection[object], event: Event) -> None:
        if reasons:
            self._events_to_repeat.add(event)

    async def _retry(self) -> None:
        self._retry_timer = None
        events, self._events_to_repeat = self._events_to_repeat, set()
        for event in events:
            self._enqueue(event)
        keys, self._machine.failed = self._machine.failed, set()
        self._removals_to_repeat.clear()
        await self._repair(keys)
        await self._finish_deletions()

    def _schedule_retry(self) -> None:
        waiting = self._machine.failed or self._events_to_repeat or self._removals_to_repeat
        if not waiting:
            self._retries = 0
        elif self._retry_timer is None:
            pause_s = self._settings.backoff.pause_s(self._retries)
            self._retries += 1
            loop = asyncio.get_running_loop()
            self._retry_timer = loop.call_later(pause_s, self._enqueue, Retry())

    # ---- news for the brokers

    def _describe_replicas_of(self, broker_ids: Collection[int]) -> None:
        """Which replicas are offline has changed where one of these brokers has a replica."""
        if broker_ids:
            self._to_describe.update(
                partition.topic_partition
                for partition in self.context.kept_partitions()
                if not set(broker_ids).isdisjoint(partition.replicas)
            )

    def _tell_current_state(self, broker_ids: Collection[int]) -> None:
        """These brokers know nothing yet: all metadata, and what they lead or follow. What still
        needs a leader is told to all when this round has tried to give it one."""
        if not broker_ids:
            return
        for partition in self.context.kept_partitions():
            if partition.status is not PartitionStatus.ONLINE:
                self._to_describe.add(partition.topic_partition)
                continue
            facts = self.context.facts(partition)
            for broker_id in broker_ids:
                work = self._senders[broker_id].work
                work.describe(facts)
                if broker_id in partition.replicas:
                    work.lead_or_follow(facts)

    def _describe_to_all(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            facts = self.context.facts(partition)
            for sender in self._senders.values():
                sender.work.describe(facts)

    def _tell(self) -> None:
        """Hand over what this round changed, then wake every sender: one round, one command of a
        kind for each broker."""
        changed, self._machine.changed = self._machine.changed, {}
        described, self._to_describe = self._to_describe | changed.keys(), set()
        for key in sorted(described):
            partition = self.context.partitions.get(key)
            if partition is None or key.topic in self.context.deletions:
                continue
            self._describe_to_all([partition])
            if key in changed and partition.state is not None:
                facts = self.context.facts(partition, is_new=changed[key])
                for broker_id in self.context.live(partition.replicas):
                    self._senders[broker_id].work.lead_or_follow(facts)
        for sender in self._senders.values():
            sender.wake()
        self._schedule_retry()
