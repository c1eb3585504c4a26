"""`offsets.storage=zookeeper`: committed offsets are ZooKeeper nodes, and offsets of open
transactions are records in the log.

If `offsets.storage` was `kafka` before, the log also has committed offsets, which are newer than
the nodes. Loading writes these offsets to nodes, and appends tombstones so that no later load
writes them again.

When a transaction commits, its offsets are written to nodes (`transaction_writes.py`). Then the log
offset of the commit marker is written to a node (`applied_marker.py`). For transactions with a
later commit marker, loading writes the offsets to nodes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from pybroker.applog.rate_limit import LogLimit
from pybroker.coordinator.groups.fenced_writes import FencedWrites
from pybroker.coordinator.groups.group_nodes import (
    classic_members,
    remove_empty_topics,
    remove_group_nodes,
)
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import (
    OffsetKey,
    encode_offset_key,
    encode_offset_value,
)
from pybroker.coordinator.offsets.applied_marker import AppliedMarker
from pybroker.coordinator.offsets.commit_watches import RecentCommits, Watches
from pybroker.coordinator.offsets.log_records import Ended
from pybroker.coordinator.offsets.nodes import OffsetNodes, commit_change, removal
from pybroker.coordinator.offsets.offset_log import OffsetLog, records_of
from pybroker.coordinator.offsets.storage_mark import StorageMark, Stored
from pybroker.coordinator.offsets.transaction_writes import TransactionWrites
from pybroker.coordinator.offsets.watched_offsets import WatchedOffsets
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord
from pybroker.coordinator.zookeeper.multi_batcher import Multis
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.model import NO_OFFSET, TopicPartition
from pybroker.ports import Coord, KeyValue, Producer

log = logging.getLogger(__name__)

T = TypeVar("T")

RECORDS_PER_MOVE: Final = 500
"""The number of records that loading moves at a time."""
READ_S: Final = 0.002
"""The time limit of a fetch grows by this number of seconds for each partition."""
OFFSETS_OF_GROUP_MAX: Final = 10_000
"""The number of partitions that is assumed for the time limit of a fetch of all offsets."""
SYNC_AGE_MAX_S: Final = 1.0
"""The maximum age of the last sync: a fetch syncs with ZooKeeper if the last sync is older, because
tools and consumers of Kafka 0.8 write offsets to ZooKeeper directly."""
COMMIT_TIMEOUT_S: Final = 5.0
"""offsets.commit.timeout.ms"""


class ZookeeperOffsets:
    """The `OffsetStore` of one shard. This store keeps committed offsets in ZooKeeper nodes.
    `coord`: a ZooKeeper session that only group coordination uses. `is_mine` returns whether a
    group belongs to this shard."""

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
        self._log = OffsetLog(shard, self._transaction_ended)
        self._recorded = self._log.recorded
        self._watches = Watches()
        self._nodes = OffsetNodes(coord)
        self._watched = WatchedOffsets(coord, self._nodes)
        self.writes = FencedWrites(coord, shard, timeout_s=timeout_s, joint=joint)
        self._applied = AppliedMarker(coord, self.writes, shard.partition)
        self._transactions = TransactionWrites(
            shard,
            self.writes,
            self._applied,
            is_ending=self._log.is_ending,
            release=self._recorded.release,
            keep=self._keep_records,
        )
        self._confirmed = 0
        """The generation of the session in which the fence was last checked."""
        self._caught_up_s = -math.inf
        """When this store last synced with ZooKeeper (monotonic seconds)."""

    # ---- loading

    def replay(self, record: StoredRecord) -> None:
        self._log.replay(record)

    def replay_marker(self, marker: StoredMarker) -> None:
        self._log.replay_marker(marker)

    async def loaded(self) -> None:
        """Wait until every in-sync replica follows this broker, so that no earlier coordinator
        holds a leader lease. Then write the log's offsets to ZooKeeper. The applied marker is the
        log offset up to which transactional offsets are in ZooKeeper already. Leave out the offsets
        of transactions that ended at or below this offset. Raises BrokerError, CoordError,
        MalformedNode."""
        await self._shard.followed()
        self._log.begin()
        applied = await self._applied.get()
        recorded = [
            (key, each.committed)
            for key, each in self._recorded.items()
            if applied is None or not NO_OFFSET < each.marker_offset <= applied
        ]
        for start in range(0, len(recorded), RECORDS_PER_MOVE):
            await self._move(recorded[start : start + RECORDS_PER_MOVE])
        if recorded:
            log.info(
                "offsets moved to zookeeper partition=%d offsets=%d",
                self._shard.partition,
                len(recorded),
            )
        await self._store_applied(applied)
        await StorageMark(self._coord, self.writes, self._shard.partition).put(Stored.ZOOKEEPER)
        self._transactions.begin()

    async def _store_applied(self, stored: int | None) -> None:
        wanted = AppliedMarker.after_loading(stored, self._log.last_marker, self._shard.log_end)
        code = ErrorCode.NONE if wanted is None else await self._applied.put(wanted)
        if code is not ErrorCode.NONE:
            raise BrokerError(
                code,
                "the log offset of the last transaction marker of"
                f" __consumer_offsets-{self._shard.partition} cannot be written to ZooKeeper",
            )

    async def _move(self, recorded: Sequence[tuple[OffsetKey, CommittedOffset]]) -> None:
        now_ms = self._shard.clock.wall_ms()
        codes = await self.writes.write(
            [
                commit_change(key.group_id, key.topic_partition, committed, now_ms)
                for key, committed in recorded
            ]
        )
        refused = {}
        for (key, committed), code in zip(recorded, codes, strict=True):
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                raise BrokerError(
                    code, f"the committed offset of {key} cannot be written to ZooKeeper"
                )
            if code is not ErrorCode.NONE:
                log.error(
                    "offset not moved to zookeeper group=%s partition=%s offset=%d reason=%s",
                    key.group_id,
                    key.topic_partition,
                    committed.offset,
                    code.name,
                )
                refused[key] = committed
        moved = [key for key, _ in recorded if key not in refused]
        await self._keep_records(
            {key: refused[key] for key in refused if not self._is_left_over(key)}
        )
        # A tombstone would also delete the pending offset of an open transaction. So the record
        # stays, and the next load moves it again, unless a later commit has replaced it.
        await self._log.append(
            [
                KeyValue(encode_offset_key(key), None)
                for key in moved
                if self._is_left_over(key) and not self._is_undecided(key)
            ]
        )

    def _is_left_over(self, key: OffsetKey) -> bool:
        """Whether the log still has a non-transactional offset record of `key`. The next load of
        the partition would copy this record to ZooKeeper."""
        recorded = self._recorded.of_group(key.group_id).get(key.topic_partition)
        return recorded is not None and recorded.marker_offset == NO_OFFSET

    def _is_undecided(self, key: OffsetKey) -> bool:
        return key.topic_partition in self._log.undecided(key.group_id)

    def ended(self) -> None:
        self.writes.end()
        self._watched.clear()
        self._transactions.end()
        self._log.end()

    def _transaction_ended(self, ended: Ended) -> None:
        self._transactions.add(ended)

    async def _keep_records(self, refused: Mapping[OffsetKey, CommittedOffset | None]) -> None:
        """Append a log record for each offset that ZooKeeper has refused. The next call of `loaded`
        tries again to write these offsets to ZooKeeper. Raises BrokerError."""
        values = {
            key: None if committed is None else encode_offset_value(committed)
            for key, committed in refused.items()
        }
        await self._log.append(
            [KeyValue(encode_offset_key(key), value) for key, value in values.items()]
        )

    # ---- requests

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        await self._transactions.settled(group_id, offsets, self._timeout_s)
        now_ms = self._shard.clock.wall_ms()
        self._watches.note(group_id, offsets)
        codes = await self.writes.write(
            [commit_change(group_id, key, value, now_ms) for key, value in offsets.items()]
        )
        written = [key for key, code in zip(offsets, codes, strict=True) if not code]
        await self._append_tombstones(group_id, written)
        return dict(zip(offsets, codes, strict=True))

    async def prepare(self, group_id: str) -> None:
        """Do nothing."""

    async def commit_in_transaction(
        self, group_id: str, producer: Producer, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self._watches.note(group_id, offsets)
        codes, records = records_of(group_id, offsets)
        await self._log.append(records, producer)
        return codes

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Wait until the outcome of all earlier commits of the group is known. Then read the
        nodes."""
        await self.writes.settled(group_id)

        async def read() -> Mapping[TopicPartition, CommittedOffset]:
            await self._catch_up()
            return await self._nodes.read(group_id, partitions)

        count = OFFSETS_OF_GROUP_MAX if partitions is None else len(partitions)
        return await self._in_time(group_id, count, read())

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]:
        """Return partition -> committed offset of the group. The call does not check whether this
        broker is still the coordinator. It reads only nodes that have changed since the last call
        for the group."""
        return await self._in_time(
            group_id, OFFSETS_OF_GROUP_MAX, self._watched.positions(group_id)
        )

    async def _in_time(self, group_id: str, count: int, read: Awaitable[T]) -> T:
        """Return the result of `read`, which reads `count` offsets of the group. Raises BrokerError
        if the read fails or exceeds its time limit."""
        try:
            async with asyncio.timeout(self._timeout_s + count * READ_S):
                return await read
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
        ZooKeeper server lags. If the session is new, or if another broker has possibly become the
        coordinator, also check that no later coordinator has changed the fence node. Raises
        BrokerError NOT_COORDINATOR, or CoordError."""
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
                ErrorCode.NON_EMPTY_GROUP,
                f"before you delete group {group_id}, stop its consumers of Kafka 0.8:"
                f" {', '.join(members[:10])}",
            )
        codes = await self._remove(group_id, await self.names(group_id))
        await remove_group_nodes(self._coord, self.writes, group_id)
        return codes

    async def _remove(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        keys = list(partitions)
        await self._transactions.settled(group_id, keys, self._timeout_s)
        await self._append_tombstones(group_id, keys)
        codes = await self.writes.write([removal(group_id, key) for key in keys])
        return dict(zip(keys, codes, strict=True))

    # ---- removal

    def watch(self) -> RecentCommits:
        return self._watches.begin()

    def unwatch(self, recent_commits: RecentCommits) -> None:
        self._watches.end(recent_commits)

    async def all_group_ids(self) -> Collection[str]:
        of_nodes = [name for name in await self._nodes.all_groups() if self._is_mine(name)]
        return dict.fromkeys([*of_nodes, *self._recorded.pending.groups()])

    async def names(self, group_id: str) -> Collection[TopicPartition]:
        await self.writes.settled(group_id)
        return {*await self._nodes.names(group_id), *self._log.undecided(group_id)}

    async def remove_without_recent_commit(
        self, group_id: str, keys: Collection[TopicPartition], recent_commits: RecentCommits
    ) -> None:
        """Remove the offsets of `keys`, except those in `recent_commits`. No await is allowed
        between the last look into `recent_commits` and the removal. Otherwise the removal could
        delete a newer commit."""

        def old() -> list[TopicPartition]:
            return [key for key in keys if OffsetKey(group_id, key) not in recent_commits]

        await self._transactions.settled(group_id, keys, self._timeout_s)
        await self._append_tombstones(group_id, old())
        gone = old()
        codes = await self.writes.write([removal(group_id, key) for key in gone])
        check_all(dict(zip(gone, codes, strict=True)), group_id)
        await remove_empty_topics(self._coord, self.writes, group_id, {key.topic for key in gone})

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        return self._log.undecided(group_id)

    def undecided_bytes(self) -> int:
        return self._recorded.pending.bytes_used

    async def group_ids(self) -> Collection[str]:
        try:
            groups = await self._nodes.coordinated_groups()
        except CoordError as error:
            raise unavailable(error) from error
        of_nodes = {group_id for group_id in groups if self._is_mine(group_id)}
        return of_nodes.union(self._recorded.pending.groups())

    async def _append_tombstones(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Append tombstones for the group's offset records of these partitions. Without the
        tombstones, the next load would write the outdated records to the ZooKeeper nodes."""
        keys = [OffsetKey(group_id, partition) for partition in partitions]
        await self._log.append(
            [
                KeyValue(encode_offset_key(key), None)
                for key in keys
                if self._is_left_over(key) or self._is_undecided(key)
            ]
        )


def check_all(codes: Mapping[TopicPartition, ErrorCode], group_id: str) -> None:
    """Raise BrokerError for the first code that is not NONE."""
    for key, code in codes.items():
        if code is not ErrorCode.NONE:
            raise BrokerError(
                code, f"the committed offset of group {group_id} for {key} cannot be removed"
            )


def unavailable(error: Exception) -> BrokerError:
    return BrokerError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"ZooKeeper does not answer, so committed offsets are not available; retry ({error!r})",
    )
