"""The group coordinators of a broker: one shard for each partition of `__consumer_offsets` that
this broker leads.

If committed offsets are stored in ZooKeeper, the broker writes them in a separate ZooKeeper
session, so that these writes do not delay changes of an ISR.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pybroker.admin.view import GroupNumbers
from pybroker.applog.rate_limit import LogLimit
from pybroker.broker.lag_watch import LagWatch, ask_leaders
from pybroker.broker.zookeeper_lease import ZooKeeperLease
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.coordinator import GroupCoordinator
from pybroker.coordinator.groups.dependencies import GroupDependencies
from pybroker.coordinator.groups.fence import FenceOwner, take_fence
from pybroker.coordinator.groups.memory_limit import MemoryLimit
from pybroker.coordinator.groups.service import GroupService
from pybroker.coordinator.offsets.classic_nodes import ClassicOffsets
from pybroker.coordinator.offsets.stores import ConfiguredOffsets
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker
from pybroker.coordinator.runtime.shards import Shards
from pybroker.coordinator.zookeeper.multi_batcher import MultiBatcher
from pybroker.handlers.context import TopicAdmin
from pybroker.handlers.internal_topic import InternalTopic, NewTopic
from pybroker.handlers.metadata_view import MetadataView
from pybroker.metrics import Metrics
from pybroker.model import Endpoint, TopicPartition
from pybroker.ports import Blocking, Clock, Coord, PartitionLog, Rng
from pybroker.records.compression import Codec
from pybroker.replication.internal_log import InternalLog, Verify
from pybroker.replication.isr_changes import LeadNow
from pybroker.replication.manager import ReplicaManager

GROUP_TOPIC: Final = "__consumer_offsets"
_MEMORY_USERS: Final = "group members and offsets of open transactions"


@dataclass(frozen=True, slots=True)
class CoordinationRooms:
    """The components of the broker that the group coordinators use."""

    broker_id: int
    config: BrokerConfig
    coord: Coord
    offsets: Coord
    """The separate ZooKeeper session in which committed offsets are written."""
    replicas: ReplicaManager
    metadata: MetadataView
    topics: TopicAdmin
    lease: ZooKeeperLease
    lead_now: LeadNow
    clock: Clock
    rng: Rng
    blocking: Blocking
    log_limit: LogLimit
    metrics: Metrics


class GroupCoordination:
    """Creates the group coordinators of one broker and runs them between `start` and `stop`."""

    def __init__(self, rooms: CoordinationRooms, verify: Verify) -> None:
        """`verify` asks the transaction coordinator to confirm a transaction. It is called before
        the transaction's first offsets are appended to a partition."""
        self._rooms = rooms
        self._verify = verify
        self._dependencies = GroupDependencies(
            rooms.config,
            rooms.metrics.groups,
            MemoryLimit(rooms.clock, self._size, what=_MEMORY_USERS).take,
        )
        self.topic = InternalTopic(
            GROUP_TOPIC,
            metadata=rooms.metadata,
            topics=rooms.topics,
            new_topic=self._new_topic,
            clock=rooms.clock,
            log_limit=rooms.log_limit,
        )
        self.shards: Shards[GroupCoordinator] = Shards(
            topic=GROUP_TOPIC,
            make=self._make,
            open_log=self._open_log,
            fence=self,
            commit_timeout_s=lambda: rooms.config.offsets_commit_timeout_ms / 1000,
            bytes_per_read=lambda: rooms.config.offsets_load_buffer_size,
            clock=rooms.clock,
            rng=rooms.rng,
            blocking=rooms.blocking,
            log_limit=rooms.log_limit,
            is_fenced=lambda: not rooms.replicas.lease,
        )
        self.service = GroupService(self.shards, self.topic.partition_of)
        ask = ask_leaders(rooms.broker_id, self._own_endpoint)
        self.lags = LagWatch(self.service, ask, rooms.clock)
        self.classic_offsets = ClassicOffsets(
            rooms.offsets, timeout_s=rooms.config.offsets_commit_timeout_ms / 1000
        )
        """Serves OffsetCommit and OffsetFetch version 0. These versions store offsets in ZooKeeper,
        so any broker can serve them."""
        self._joint = MultiBatcher(rooms.offsets)
        rooms.replicas.on_internal[GROUP_TOPIC] = self._role_changed
        rooms.replicas.on_marker = self._marker_written
        rooms.metadata.on_deleted = self._topics_deleted

    def start(self) -> None:
        self.shards.start()

    async def stop(self) -> None:
        """Stop the measurement of lags, and stop the shards. Idempotent."""
        await self.lags.close()
        await self.shards.stop()

    def numbers(self) -> GroupNumbers:
        """Return the values of the metrics about groups and shards."""
        counts, times = self.service.count_by_state(), self.shards.load_times
        return GroupNumbers(
            by_state={state.value.lower(): count for state, count in counts.items()},
            partitions=len(self.shards.serving()),
            loading=len(self.shards.loading),
            longest_load_s=times.longest_s,
            mean_load_s=times.total_s / times.partitions if times.partitions else 0.0,
        )

    async def take(self, source: PartitionLog, token: str) -> int | None:
        """Write this broker's id, the leader epoch and `token` to the shard's fence node in
        ZooKeeper, so that writes of an earlier coordinator fail. Return the node's version. Return
        None if another client changed a node meanwhile: the caller must then try again."""
        key, epoch = source.topic_partition, source.leader_epoch
        partition = self._rooms.replicas.partition(key)
        if partition.topic_id is not None:
            await self.topic.learn(partition.topic_id)
        owner = FenceOwner(key, self._rooms.broker_id, epoch, token)
        return await take_fence(self._rooms.coord, owner)

    def _size(self) -> int:
        """Return the approximate memory (bytes) of all groups that this broker coordinates."""
        return sum(shard.size() for shard in self.shards.serving().values())

    def _make(self, context: ShardContext) -> GroupCoordinator:
        partition = context.partition

        def is_mine(group_id: str) -> bool:
            return self.topic.partition_of(group_id) == partition

        config = self._rooms.config
        offsets = ConfiguredOffsets(
            context, self._rooms.offsets, is_mine=is_mine, config=config, joint=self._joint
        )
        coordinator = GroupCoordinator(context, offsets, offsets.mirror, self._dependencies)
        offsets.facts = coordinator.facts
        return coordinator

    def _topics_deleted(self, names: Collection[str]) -> None:
        for coordinator in self.shards.serving().values():
            if isinstance(coordinator.offsets, ConfiguredOffsets):
                coordinator.offsets.removal.topics_deleted(names)

    def _own_endpoint(self) -> Endpoint | None:
        """Return this broker's inter-broker endpoint, or None while the metadata does not contain
        this broker."""
        own = self._rooms.metadata.brokers.get(self._rooms.broker_id)
        return None if own is None else own.endpoint(self._rooms.config.inter_broker_listener)

    def _role_changed(self, key: TopicPartition) -> None:
        partition = self._rooms.replicas.partitions.get(key)
        if partition is not None and partition.is_leader:
            self.shards.led(key.partition, partition.leading_since)
        else:
            self.shards.resigned(key.partition)

    def _marker_written(
        self, key: TopicPartition, offset: int, producer_id: int, epoch: int, is_commit: bool
    ) -> None:
        if key.topic == GROUP_TOPIC:
            marker = StoredMarker(offset, producer_id, epoch, is_commit)
            self.shards.marker_written(key.partition, marker)

    def _open_log(self, partition: int) -> InternalLog:
        rooms = self._rooms
        return InternalLog(
            rooms.replicas,
            TopicPartition(GROUP_TOPIC, partition),
            blocking=rooms.blocking,
            lead_now=rooms.lead_now,
            codec=Codec(rooms.config.offsets_topic_compression_codec),
            look=rooms.lease.check,
            verify=self._verify,
        )

    def _new_topic(self) -> NewTopic:
        config = self._rooms.config
        return NewTopic(
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
