"""Chooses by `offsets.storage` where a shard (the coordinator of one `__consumer_offsets`
partition) stores its offsets. This module also mirrors the members of groups to ZooKeeper, and
removes offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.dependencies import GroupFacts
from pybroker.coordinator.groups.mirror import GroupMirror
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets.log_store import LoggedOffsets
from pybroker.coordinator.offsets.removal import OffsetRemoval
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord
from pybroker.coordinator.zookeeper.multi_batcher import Multis
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Coord, Producer

IN_ZOOKEEPER: Final = "zookeeper"
IN_THE_LOG: Final = "kafka"
Store = ZookeeperOffsets | LoggedOffsets
_STORES: Final[Mapping[str, Callable[..., Store]]] = {
    IN_ZOOKEEPER: ZookeeperOffsets,
    IN_THE_LOG: LoggedOffsets,
}


class ConfiguredOffsets:
    """The `OffsetStore` that `offsets.storage` names. `mirror` writes the group members to
    ZooKeeper, `removal` removes expired offsets; `facts` returns the state of a group."""

    def __init__(
        self,
        shard: ShardContext,
        coord: Coord,
        *,
        is_mine: Callable[[str], bool],
        config: BrokerConfig,
        joint: Multis,
    ) -> None:
        """`coord` and `joint`: the session and the write batcher that all shards of the broker
        share. `is_mine` returns whether a group belongs to this shard."""
        timeout_s = config.offsets_commit_timeout_ms / 1000
        self.store: Store
        self.store = _STORES[config.offsets_storage](
            shard, coord, is_mine=is_mine, timeout_s=timeout_s, joint=joint
        )
        self.mirror = GroupMirror(shard, coord, timeout_s=timeout_s, joint=joint)
        self.removal = OffsetRemoval(shard, coord, self.store, config)
        self.facts: Callable[[str], GroupFacts | None] = lambda _: None

    def replay(self, record: StoredRecord) -> None:
        self.store.replay(record)

    def replay_marker(self, marker: StoredMarker) -> None:
        self.store.replay_marker(marker)

    async def loaded(self) -> None:
        await self.store.loaded()
        self.removal.begin(self.facts)

    def ended(self) -> None:
        self.removal.end()
        self.mirror.end()
        self.store.ended()

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        return await self.store.commit(group_id, offsets)

    async def prepare(self, group_id: str) -> None:
        await self.store.prepare(group_id)

    async def commit_in_transaction(
        self, group_id: str, producer: Producer, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        return await self.store.commit_in_transaction(group_id, producer, offsets)

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return await self.store.fetch(group_id, partitions)

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]:
        return await self.store.positions(group_id)

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        return await self.store.delete(group_id, partitions)

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        return self.store.undecided(group_id)

    def undecided_bytes(self) -> int:
        return self.store.undecided_bytes()

    async def group_ids(self) -> Collection[str]:
        return await self.store.group_ids()
