"""The coordinators of a broker, put together: the shards of `__consumer_offsets`, the logs of its
partitions, the fences in ZooKeeper, and the topic itself.

Offsets are written over a session of their own, so that a flood of commits does not delay what the
replicas write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pybroker.broker_config import BrokerConfig
from pybroker.coordinator.groups.fence import Claim, take_fence
from pybroker.coordinator.runtime.shard import Coordinator, ShardContext, StoredMarker, StoredRecord
from pybroker.coordinator.runtime.shards import Shards
from pybroker.handlers.context import TopicAdmin
from pybroker.handlers.internal_topic import InternalTopic, NewTopic
from pybroker.handlers.metadata_view import MetadataView
from pybroker.log_limit import LogLimit
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Clock, Coord, PartitionLog, Rng
from pybroker.records.compression import Codec
from pybroker.replication.internal_log import InternalLog
from pybroker.replication.manager import ReplicaManager
from pybroker.standing import Standing

GROUP_TOPIC: Final = "__consumer_offsets"

C = TypeVar("C", bound=Coordinator)


@dataclass(frozen=True, slots=True)
class CoordinationRooms:
    """What of the broker the coordinators need."""

    broker_id: int
    config: BrokerConfig
    coord: Coord
    offsets: Coord
    """Another session, for offsets."""
    replicas: ReplicaManager
    metadata: MetadataView
    topics: TopicAdmin
    standing: Standing
    clock: Clock
    rng: Rng
    blocking: Blocking
    log_limit: LogLimit


class RecordCount:
    """A coordinator that only knows how many records its partition holds."""

    def __init__(self, context: ShardContext) -> None:
        self.context = context
        self.records = 0

    def replay(self, record: StoredRecord) -> None:
        self.records += 1

    def replay_marker(self, marker: StoredMarker) -> None:
        self.records += 1

    async def loaded(self) -> None:
        """Nothing is left to do."""

    def ended(self) -> None:
        """Nobody waits."""


class GroupCoordination(Generic[C]):
    """Runs between `start` and `stop`."""

    def __init__(self, rooms: CoordinationRooms, make: Callable[[ShardContext], C]) -> None:
        """`make` gives the coordinator of a shard."""
        self._rooms = rooms
        self.topic = InternalTopic(
            GROUP_TOPIC,
            metadata=rooms.metadata,
            topics=rooms.topics,
            new_topic=self._new_topic,
            clock=rooms.clock,
            log_limit=rooms.log_limit,
        )
        self.shards = Shards(
            topic=GROUP_TOPIC,
            make=make,
            open_log=self._open_log,
            fence=self,
            options=lambda: rooms.config,
            clock=rooms.clock,
            rng=rooms.rng,
            blocking=rooms.blocking,
            log_limit=rooms.log_limit,
            is_fenced=lambda: rooms.replicas.is_fenced,
        )
        rooms.replicas.on_internal = self._role_changed

    def start(self) -> None:
        self.shards.start()

    async def stop(self) -> None:
        """Idempotent."""
        await self.shards.stop()

    async def take(self, source: PartitionLog, token: str) -> int | None:
        """The fence of a shard, and what else it needs before it serves."""
        key, epoch = source.topic_partition, source.leader_epoch
        partition = self._rooms.replicas.partition(key)
        if partition.topic_id is not None:
            await self.topic.learn(partition.topic_id)
        claim = Claim(key, self._rooms.broker_id, epoch, token)
        return await take_fence(self._rooms.coord, claim)

    def _role_changed(self, key: TopicPartition) -> None:
        if key.topic != GROUP_TOPIC:
            return
        partition = self._rooms.replicas.partitions.get(key)
        if partition is not None and partition.is_leader:
            self.shards.led(key.partition, partition.leading_since)
        else:
            self.shards.resigned(key.partition)

    def _open_log(self, partition: int) -> InternalLog:
        rooms = self._rooms
        return InternalLog(
            rooms.replicas,
            TopicPartition(GROUP_TOPIC, partition),
            blocking=rooms.blocking,
            codec=Codec(rooms.config.offsets_topic_compression_codec),
            look=self._look,
        )

    def _look(self) -> None:
        """A timer that fires after a pause comes before any request that would look."""
        standing = self._rooms.standing
        if self._rooms.clock.boottime() > standing.valid_until:
            standing.look()

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
