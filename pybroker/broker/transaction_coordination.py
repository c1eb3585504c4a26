"""The transaction coordinators of a broker: one shard for each partition of `__transaction_state`
that this broker leads.

A shard needs no fence in ZooKeeper against an earlier coordinator. The in-sync replicas do not
replicate the records of the earlier coordinator. The partition leaders refuse the markers of the
earlier coordinator, because its epoch is lower.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from pybroker.admin.view import TransactionNumbers
from pybroker.background import TaskOwner
from pybroker.broker.group_coordination import CoordinationRooms
from pybroker.coordinator.groups.memory_limit import MemoryLimit
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.coordinator.runtime.shards import Shards
from pybroker.coordinator.transactions.coordinator import TransactionCoordinator
from pybroker.coordinator.transactions.deleted_partitions import deleted_partitions
from pybroker.coordinator.transactions.dependencies import TransactionDependencies
from pybroker.coordinator.transactions.markers import MarkerSender
from pybroker.coordinator.transactions.service import TransactionService
from pybroker.handlers.dispatch import Dispatcher
from pybroker.handlers.internal_topic import InternalTopic, NewTopic
from pybroker.model import NO_LEADER, Broker, TopicPartition
from pybroker.peers.marker_channel import LocalMarkers, RemoteMarkers, new_remote_markers
from pybroker.ports import MarkerChannel, PartitionLog
from pybroker.replication.internal_log import InternalLog
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.messages.transactions import WriteTxnMarkersRequest
from pybroker.wire.schema import Message

TRANSACTION_TOPIC: Final = "__transaction_state"
_COMMIT_LOOK_S: Final = 30.0
"""If the in-sync replicas do not have a record of a shard after this time (s), the shard logs that
it still waits."""


class TransactionCoordination:
    """Creates the transaction coordinators of one broker and runs them between `start` and
    `stop`."""

    def __init__(
        self,
        rooms: CoordinationRooms,
        new_producer_id: Callable[[], Awaitable[int]],
        dispatcher: Callable[[], Dispatcher],
    ) -> None:
        """`new_producer_id` returns an unused producer id. `dispatcher` returns the broker's
        dispatcher, which receives the transaction markers for partitions that this broker leads."""
        self._rooms = rooms
        self.dispatcher = dispatcher
        self._own_markers = LocalMarkers(self._write_markers)
        self.topic = InternalTopic(
            TRANSACTION_TOPIC,
            metadata=rooms.metadata,
            topics=rooms.topics,
            new_topic=self._new_topic,
            clock=rooms.clock,
            log_limit=rooms.log_limit,
        )
        self._channels: dict[int, tuple[Broker, RemoteMarkers]] = {}
        self._closing = TaskOwner()
        self._sender = MarkerSender(
            leader_of=self._leader_of,
            channel_to=self._channel_to,
            deleted=partial(deleted_partitions, rooms.coord),
            log_limit=rooms.log_limit,
        )
        memory = MemoryLimit(rooms.clock, self._size, what="transactional ids")
        self._dependencies = TransactionDependencies(
            rooms.config, new_producer_id, self._sender.send, memory.take, memory.take_for_new
        )
        self.shards: Shards[TransactionCoordinator] = Shards(
            topic=TRANSACTION_TOPIC,
            make=self._make,
            open_log=self._open_log,
            fence=self,
            commit_timeout_s=lambda: _COMMIT_LOOK_S,
            bytes_per_read=lambda: rooms.config.transaction_state_log_load_buffer_size,
            clock=rooms.clock,
            rng=rooms.rng,
            blocking=rooms.blocking,
            log_limit=rooms.log_limit,
            is_fenced=lambda: not rooms.replicas.lease,
        )
        self.service = TransactionService(self.shards, self.topic.partition_of)
        rooms.replicas.on_internal[TRANSACTION_TOPIC] = self._role_changed

    def start(self) -> None:
        self.shards.start()

    async def stop(self) -> None:
        """Stop the shards and the sending of markers. Idempotent."""
        await self.shards.stop()
        await self._sender.stop()
        channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            await channel.close()
        await self._closing.close()

    def numbers(self) -> TransactionNumbers:
        """Return the values of the metrics about transactions."""
        shards, times = [*self.shards.serving().values()], self.shards.load_times
        return TransactionNumbers(
            ids=sum(shard.count() for shard in shards),
            partitions=len(shards),
            loading=len(self.shards.loading),
            longest_load_s=times.longest_s,
            mean_load_s=times.total_s / times.partitions if times.partitions else 0.0,
            waiting_markers=self._sender.waiting,
            markers_without_leader=self._sender.without_leader,
            completions_to_append=sum(shard.completions_to_append for shard in shards),
        )

    async def take(self, source: PartitionLog, token: str) -> int | None:
        """Read the partition count of `__transaction_state` if it is unknown. Return 0 as the
        version of the fence node, because a transaction coordinator has no fence node in ZooKeeper.
        `token` is not used."""
        partition = self._rooms.replicas.partition(source.topic_partition)
        if partition.topic_id is not None:
            await self.topic.learn(partition.topic_id)
        return 0

    async def _write_markers(self, request: WriteTxnMarkersRequest) -> Message:
        key, listener = ApiKey.WRITE_TXN_MARKERS, self._rooms.config.inter_broker_listener
        return await self.dispatcher().call(key, APIS[key].max_version, listener, request)

    def _make(self, context: ShardContext) -> TransactionCoordinator:
        return TransactionCoordinator(context, self._dependencies)

    def _size(self) -> int:
        """Return the approximate memory (bytes) of all transactional ids of this broker."""
        return sum(shard.size() for shard in self.shards.serving().values())

    def _role_changed(self, key: TopicPartition) -> None:
        partition = self._rooms.replicas.partitions.get(key)
        if partition is not None and partition.is_leader:
            self.shards.led(key.partition, partition.leading_since)
        else:
            self.shards.resigned(key.partition)

    def _leader_of(self, key: TopicPartition) -> int | None:
        """Return the broker id of the partition's leader: NO_LEADER if no live broker leads it,
        None if the metadata has no such partition."""
        topic = self._rooms.metadata.topic(key.topic)
        facts = None if topic is None else topic.partitions.get(key.partition)
        if facts is None:
            return None
        leader = facts.state.leader
        return leader if leader in self._rooms.metadata.brokers else NO_LEADER

    def _channel_to(self, broker_id: int) -> MarkerChannel | None:
        """Return the channel to the broker `broker_id`, or None if that broker is not alive. A
        broker that has registered again gets a new channel."""
        rooms = self._rooms
        if broker_id == rooms.broker_id:
            return self._own_markers
        broker = rooms.metadata.brokers.get(broker_id)
        if broker is None:
            return None
        known = self._channels.get(broker_id)
        if known is None or known[0] != broker:
            if known is not None:
                self._closing.start(known[1].close(), f"close markers to {broker_id}")
            known = (broker, new_remote_markers(rooms.config, rooms.broker_id, broker))
            self._channels[broker_id] = known
        return known[1]

    def _open_log(self, partition: int) -> InternalLog:
        rooms = self._rooms
        return InternalLog(
            rooms.replicas,
            TopicPartition(TRANSACTION_TOPIC, partition),
            blocking=rooms.blocking,
            lead_now=rooms.lead_now,
            look=rooms.lease.check,
        )

    def _new_topic(self) -> NewTopic:
        config = self._rooms.config
        return NewTopic(
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
