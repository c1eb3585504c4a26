"""`offsets.storage=zookeeper`: committed offsets are stored only as ZooKeeper nodes.

Offset records in the log are from an earlier time: this cluster had `offsets.storage=kafka`, or
Apache brokers wrote the records. They are newer than the nodes, so loading moves them to nodes: the
store writes the nodes, appends tombstones for the records, and answers requests after the
tombstones are committed. So each record is moved only once, even if loading is interrupted, and a
node that is deleted afterwards is not restored.

The storage mark is a node that names the store of a shard's offsets. If the cluster is configured
for `offsets.storage=kafka` later, `log_store.py` reads the mark and moves the offsets back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.coordinator.groups.fenced_writes import FencedWrites
from pybroker.coordinator.groups.group_nodes import (
    classic_members,
    remove_empty_topics,
    remove_group_nodes,
)
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import OffsetKey, encode_offset_key
from pybroker.coordinator.offsets.commit_watches import RecentCommits, Watches
from pybroker.coordinator.offsets.log_records import RecordedOffsets
from pybroker.coordinator.offsets.nodes import OffsetNodes, commit_change, removal
from pybroker.coordinator.offsets.storage_mark import StorageMark, Stored
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord
from pybroker.coordinator.zookeeper.multi_batcher import Multis
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord, KeyValue

log = logging.getLogger(__name__)

RECORDS_PER_APPEND_MAX: Final = 500
"""The most tombstones of one append. Even with names of 249 bytes they are far smaller than the
largest batch."""
READ_S: Final = 0.002
"""The time limit of a fetch grows by this number of seconds for each partition."""
OFFSETS_OF_GROUP_MAX: Final = 10_000
"""The number of partitions that is assumed for the time limit of a fetch of all offsets."""
SYNC_AGE_MAX_S: Final = 1.0
"""The maximum age of the last sync: a fetch syncs with ZooKeeper if the last sync is older, because
tools and classic consumers write offsets to ZooKeeper directly."""
COMMIT_TIMEOUT_S: Final = 5.0
"""offsets.commit.timeout.ms"""


class ZookeeperOffsets:
    """The `OffsetStore` of one shard, which stores the offsets in ZooKeeper nodes. `coord`: a
    session for group coordination only. `is_mine` returns whether a group belongs to this shard."""

    def __init__(
        self,
        shard: ShardContext,
        coord: Coord,
        *,
        is_mine: Callable[[str], bool],
        timeout_s: float = COMMIT_TIMEOUT_S,
        joint: Multis | None = None,
    ) -> None:
        self._shard = shard
        self._coord = coord
        self._is_mine = is_mine
        self._timeout_s = timeout_s
        self._log_limit = LogLimit(shard.clock)
        self._recorded = RecordedOffsets()
        self._watches = Watches()
        self._nodes = OffsetNodes(coord)
        self.writes = FencedWrites(coord, shard, timeout_s=timeout_s, joint=joint)
        self._confirmed = 0
        """The generation of the session in which the fence was last checked."""
        self._caught_up_s = -math.inf
        """When this store last synced with ZooKeeper (monotonic seconds)."""

    # ---- loading

    def replay(self, record: StoredRecord) -> None:
        self._recorded.replay(record)

    def replay_marker(self, marker: StoredMarker) -> None:
        self._recorded.replay_marker(marker)

    async def loaded(self) -> None:
        """Move the offset records of the log to nodes. Raises BrokerError, CoordError.

        An earlier coordinator answers fetches until its leader lease ends. So the new coordinator
        first waits until every in-sync replica follows it.
        """
        await self._shard.followed()
        recorded = list(self._recorded.items())
        for start in range(0, len(recorded), RECORDS_PER_APPEND_MAX):
            await self._move(recorded[start : start + RECORDS_PER_APPEND_MAX])
        if recorded:
            log.info(
                "offsets_moved_to_zookeeper partition=%d offsets=%d",
                self._shard.partition,
                len(recorded),
            )
        await StorageMark(self._coord, self.writes, self._shard.partition).put(Stored.ZOOKEEPER)

    async def _move(self, recorded: Sequence[tuple[OffsetKey, CommittedOffset]]) -> None:
        now_ms = self._shard.clock.wall_ms()
        codes = await self.writes.write(
            [
                commit_change(key.group_id, key.topic_partition, committed, now_ms)
                for key, committed in recorded
            ]
        )
        for (key, committed), code in zip(recorded, codes, strict=True):
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                raise BrokerError(
                    code, f"the committed offset of {key} cannot be written to ZooKeeper"
                )
            if code is not ErrorCode.NONE:
                log.error(
                    "offset_not_moved_to_zookeeper group=%s partition=%s offset=%d reason=%s",
                    key.group_id,
                    key.topic_partition,
                    committed.offset,
                    code.name,
                )
        moved = [
            key for (key, _), code in zip(recorded, codes, strict=True) if code is ErrorCode.NONE
        ]
        await self._drop_records(moved)

    async def _drop_records(self, keys: Sequence[OffsetKey]) -> None:
        for start in range(0, len(keys), RECORDS_PER_APPEND_MAX):
            some = keys[start : start + RECORDS_PER_APPEND_MAX]
            end = self._shard.append([KeyValue(encode_offset_key(key), None) for key in some])
            await self._shard.committed(end)

    def ended(self) -> None:
        self.writes.end()

    # ---- requests

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        now_ms = self._shard.clock.wall_ms()
        self._watches.note(group_id, offsets)
        codes = await self.writes.write(
            [commit_change(group_id, key, value, now_ms) for key, value in offsets.items()]
        )
        await self._drop_left_over(group_id, offsets)
        return dict(zip(offsets, codes, strict=True))

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Wait until all earlier commits of the group have their answer, then read the nodes."""
        await self.writes.settled(group_id)
        try:
            count = OFFSETS_OF_GROUP_MAX if partitions is None else len(partitions)
            async with asyncio.timeout(self._timeout_s + count * READ_S):
                await self._catch_up()
                return await self._nodes.read(group_id, partitions)
        except (CoordError, TimeoutError) as error:
            raise unavailable(error) from error
        except MalformedNode as error:
            left_out = self._log_limit.allow()
            if left_out is not None:
                text = "offset cannot be read group=%s lines_left_out=%d reason=%s"
                log.warning(text, group_id, left_out, error)
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    async def _catch_up(self) -> None:
        """Make sure that the next read returns all committed offsets, even if this broker's
        ZooKeeper server lags behind. With a valid leader lease no other coordinator has written
        offsets; without the lease, check the fence by a multi. Raises BrokerError NOT_COORDINATOR;
        CoordError."""
        generation, now = self._coord.generation, self._shard.clock.monotonic()
        if generation != self._confirmed or not self._shard.is_certainly_current:
            await self.writes.confirm()
        elif now - self._caught_up_s > SYNC_AGE_MAX_S:
            await self._coord.sync()
        else:
            return
        self._confirmed, self._caught_up_s = generation, now

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        await self.writes.settled(group_id)
        try:
            if partitions is None:
                return await self._delete_group(group_id)
            codes = await self._remove(group_id, partitions)
            await remove_empty_topics(
                self._coord, self.writes, group_id, {key.topic for key in partitions}
            )
        except CoordError as error:
            raise unavailable(error) from error
        return codes

    async def _delete_group(self, group_id: str) -> Mapping[TopicPartition, ErrorCode]:
        members = await classic_members(self._coord, group_id)
        if members:
            raise BrokerError(
                ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has classic consumers: {members[:10]}"
            )
        codes = await self._remove(group_id, await self._nodes.names(group_id))
        await remove_group_nodes(self._coord, self.writes, group_id)
        return codes

    async def _remove(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        keys = list(partitions)
        codes = await self.writes.write([removal(group_id, key) for key in keys])
        await self._drop_left_over(group_id, keys)
        return dict(zip(keys, codes, strict=True))

    # ---- removal

    def watch(self) -> RecentCommits:
        return self._watches.begin()

    def unwatch(self, recent_commits: RecentCommits) -> None:
        self._watches.end(recent_commits)

    async def all_group_ids(self) -> Collection[str]:
        return [group_id for group_id in await self._nodes.all_groups() if self._is_mine(group_id)]

    async def names(self, group_id: str) -> Collection[TopicPartition]:
        await self.writes.settled(group_id)
        return await self._nodes.names(group_id)

    async def remove_without_recent_commit(
        self, group_id: str, keys: Collection[TopicPartition], recent_commits: RecentCommits
    ) -> None:
        """Remove the offsets of `keys` that are not in `recent_commits`. The check and the request
        of the removal run in one step of the event loop, so a later commit is written after the
        removal."""
        gone = [key for key in keys if OffsetKey(group_id, key) not in recent_commits]
        codes = await self._remove(group_id, gone)
        check_all(codes, group_id)
        await remove_empty_topics(self._coord, self.writes, group_id, {key.topic for key in gone})

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        return self._recorded.undecided(group_id)

    async def group_ids(self) -> Collection[str]:
        try:
            groups = await self._nodes.coordinated_groups()
        except CoordError as error:
            raise unavailable(error) from error
        return {group_id for group_id in groups if self._is_mine(group_id)}

    async def _drop_left_over(self, group_id: str, keys: Iterable[TopicPartition]) -> None:
        """Delete the log records of `keys` that loading could not move to nodes: the next load
        would overwrite newer nodes with them."""
        of_group = self._recorded.of_group(group_id)
        if of_group:
            await self._drop_records([OffsetKey(group_id, key) for key in keys if key in of_group])


def check_all(codes: Mapping[TopicPartition, ErrorCode], group_id: str) -> None:
    """Raise BrokerError for the first code that is not NONE."""
    for key, code in codes.items():
        if code is not ErrorCode.NONE:
            raise BrokerError(
                code, f"the committed offset of group {group_id} for {key} cannot be removed"
            )


def unavailable(error: Exception) -> BrokerError:
    return BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"ZooKeeper does not answer: {error!r}")
