"""`offsets.storage=kafka`: committed offsets are records of `__consumer_offsets`. A fetch returns
only offsets that the in-sync replicas have.

Offsets are imported from ZooKeeper at two times:

- When a shard loads. But if the shard's storage mark (`storage_mark.py`) says that the log already
  has the offsets, they are not imported.
- At a request for a group without an offset record.

A record takes precedence over an offset node. An import does not remove the nodes, because
consumers of Kafka 0.8 read them. So the deletion of an offset must remove its node: otherwise a
later import would restore the offset.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pybroker.bounded_gather import bounded_gather
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
)
from pybroker.coordinator.offsets.applied_marker import AppliedMarker
from pybroker.coordinator.offsets.commit_watches import RecentCommits, Watches
from pybroker.coordinator.offsets.log_records import Ended
from pybroker.coordinator.offsets.nodes import OffsetNodes, removal
from pybroker.coordinator.offsets.offset_log import OffsetLog, record_of, records_of
from pybroker.coordinator.offsets.storage_mark import StorageMark, Stored
from pybroker.coordinator.offsets.zookeeper_store import COMMIT_TIMEOUT_S, check_all, unavailable
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord
from pybroker.coordinator.zookeeper.multi_batcher import Multis
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.model import NO_OFFSET, TopicPartition
from pybroker.ports import Coord, KeyValue, Producer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Import:
    """The result of importing a group's offsets from ZooKeeper. `not_imported`: the offsets that
    were not imported. `is_classic`: no offset was imported, because the group has consumers of
    Kafka 0.8. If `is_classic` is False, `not_imported` has only partitions with a pending
    transactional offset."""

    not_imported: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    is_classic: bool = False


class _ImportLock:
    """The lock for the import of one group's offsets from ZooKeeper, and the number of callers that
    hold or await the lock."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class LoggedOffsets:
    """The `OffsetStore` of one shard, in the shard's log. `coord` is a session for group
    coordination only. `is_mine` returns whether a group belongs to this shard."""

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
        self._log = OffsetLog(shard, self._transaction_ended)
        self._recorded = self._log.recorded
        self._outdated: set[OffsetKey] = set()
        """The keys of the records that are older than the nodes of the same offsets."""
        self._imports: dict[str, _ImportLock] = {}
        self._watches = Watches()
        self._nodes = OffsetNodes(coord)
        self.writes = FencedWrites(coord, shard, timeout_s=timeout_s, joint=joint)

    # ---- records

    def replay(self, record: StoredRecord) -> None:
        self._log.replay(record)

    def replay_marker(self, marker: StoredMarker) -> None:
        self._log.replay_marker(marker)

    async def loaded(self) -> None:
        """Import the shard's offsets from ZooKeeper, unless a ZooKeeper node (`storage_mark.py`)
        says that they are already in the log. Raises BrokerError (COORDINATOR_LOAD_IN_PROGRESS if a
        partition to import has a pending transactional offset), CoordError, MalformedNode."""
        self._log.begin()
        mark = StorageMark(self._coord, self.writes, self._shard.partition)
        if await mark.get() is Stored.LOG:
            return
        await self._find_outdated()
        groups = [name for name in await self._nodes.all_groups() if self._is_mine(name)]
        await bounded_gather(self._import_at_load, sorted(groups))
        gone = [key for key in self._outdated if not self._has_record(key)]
        await self._log.append([KeyValue(encode_offset_key(key), None) for key in gone])
        await mark.put(Stored.LOG)

    async def _find_outdated(self) -> None:
        """Move from `_recorded` to `_outdated` the offset records of transactions whose commit
        marker is at or below the log offset in the ZooKeeper node of `applied_marker.py`. ZooKeeper
        already has these offsets, or newer ones. Raises BrokerError, CoordError, MalformedNode."""
        applied = await AppliedMarker(self._coord, self.writes, self._shard.partition).get()
        for key, recorded in [*self._recorded.items()]:
            if applied is not None and NO_OFFSET < recorded.marker_offset <= applied:
                self._outdated.add(key)
                self._recorded.forget(key)
        for key in self._outdated:
            self._check_decided(key.group_id, {key.topic_partition})

    def _has_record(self, key: OffsetKey) -> bool:
        return key.topic_partition in self._recorded.of_group(key.group_id)

    def _check_decided(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Raise BrokerError COORDINATOR_LOAD_IN_PROGRESS if a transaction has a pending offset of
        one of the partitions. The offsets in ZooKeeper cannot be imported before the transaction
        ends."""
        undecided = sorted({*partitions}.intersection(self._log.undecided(group_id)))
        if undecided:
            raise BrokerError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the offsets of group {group_id} cannot be imported from ZooKeeper yet, because a"
                f" transaction with an offset for {undecided[0]} has not ended; retry",
            )

    def _transaction_ended(self, ended: Ended) -> None:
        self._recorded.release(ended)

    def ended(self) -> None:
        self.writes.end()
        self._log.end()

    # ---- requests

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        await self.prepare(group_id)
        self._watches.note(group_id, offsets)
        codes, records = records_of(group_id, offsets)
        await self._log.append(records)
        return codes

    async def prepare(self, group_id: str) -> None:
        """Import the group's offsets from ZooKeeper if the log has no offset record of the group
        yet. Raises BrokerError UNKNOWN_MEMBER_ID if the group has consumers of Kafka 0.8."""
        if self._may_be_new(group_id) and (await self._import_in_turn(group_id)).is_classic:
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {group_id} has consumers of Kafka 0.8; stop these consumers, or use"
                " another group id",
            )

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
        not_imported: Mapping[TopicPartition, CommittedOffset] = {}
        if self._may_be_new(group_id):
            not_imported = (await self._import_in_turn(group_id)).not_imported
        await self._shard.confirm_current()
        recorded = self._recorded.of_group(group_id)
        found = {**not_imported, **{key: each.committed for key, each in recorded.items()}}
        if partitions is None:
            return dict(found)
        return {key: found[key] for key in partitions if key in found}

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]:
        found = await self.fetch(group_id, None)
        return {key: committed.offset for key, committed in found.items()}

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        recorded = self._log.keys(group_id)
        keys = list(recorded if partitions is None else partitions)
        try:
            codes = await self._remove_nodes(group_id, keys, everything=partitions is None)
        except CoordError as error:
            raise unavailable(error) from error
        gone = [key for key in keys if key in recorded and codes[key] is ErrorCode.NONE]
        await self._log.append(
            [KeyValue(encode_offset_key(OffsetKey(group_id, key)), None) for key in gone]
        )
        return codes

    # ---- removal

    def watch(self) -> RecentCommits:
        return self._watches.begin()

    def unwatch(self, recent_commits: RecentCommits) -> None:
        self._watches.end(recent_commits)

    async def all_group_ids(self) -> Collection[str]:
        of_nodes = [name for name in await self._nodes.all_groups() if self._is_mine(name)]
        return dict.fromkeys([*self._log.groups(), *of_nodes])

    async def names(self, group_id: str) -> Collection[TopicPartition]:
        return await self._nodes.names(group_id) | self._log.keys(group_id)

    async def remove_without_recent_commit(
        self, group_id: str, keys: Collection[TopicPartition], recent_commits: RecentCommits
    ) -> None:
        """Remove the group's offsets of `keys`, except those in `recent_commits`. The offsets'
        ZooKeeper nodes are removed before the tombstones are appended, so that no removed offset is
        imported from ZooKeeper again. No await is allowed between reading `recent_commits` and
        appending the tombstones. Otherwise a tombstone could delete a newer commit."""
        codes = await self._remove_nodes(group_id, list(keys), everything=False)
        check_all(codes, group_id)
        recorded = self._log.keys(group_id)
        gone = [OffsetKey(group_id, key) for key in keys if key in recorded]
        await self._log.append(
            [KeyValue(encode_offset_key(key), None) for key in gone if key not in recent_commits]
        )

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        return self._log.undecided(group_id)

    def undecided_bytes(self) -> int:
        return self._recorded.pending.bytes_used

    async def group_ids(self) -> Collection[str]:
        return self._log.groups()

    # ---- private: the nodes

    def _may_be_new(self, group_id: str) -> bool:
        """Return whether offsets of the group may still have to be imported from ZooKeeper: the
        group has no offset record, or an import is running."""
        return group_id in self._imports or not self._recorded.of_group(group_id)

    async def _import_in_turn(self, group_id: str) -> _Import:
        """Import a group's offsets from ZooKeeper, unless the log has offsets of the group.
        Concurrent calls for one group run one after the other. Raises BrokerError."""
        turn = self._imports.setdefault(group_id, _ImportLock())
        turn.count += 1
        try:
            async with asyncio.timeout(self._timeout_s), turn.lock:
                if self._recorded.of_group(group_id):
                    return _Import()
                return await self._import_group(group_id)
        except (CoordError, TimeoutError) as error:
            raise unavailable(error) from error
        except MalformedNode as error:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        finally:
            turn.count -= 1
            if not turn.count:
                del self._imports[group_id]

    async def _import_at_load(self, group_id: str) -> None:
        try:
            imported = await self._import_group(group_id)
            if not imported.is_classic:
                self._check_decided(group_id, imported.not_imported)
        except MalformedNode as error:
            log.error("offsets not moved to the log group=%s reason=%s", group_id, error)

    async def _import_group(self, group_id: str) -> _Import:
        """Append records for the group's offsets that only ZooKeeper has, and return the offsets
        that were not imported (see `_Import`). Raises BrokerError, CoordError, MalformedNode."""
        names = await self._nodes.names(group_id)
        missing = names - self._recorded.of_group(group_id).keys()
        if not missing:
            return _Import()
        found = await self._nodes.read(group_id, missing)
        if await classic_members(self._coord, group_id):
            return _Import(found, is_classic=True)
        waiting = found.keys() & self._log.undecided(group_id)
        await self._log.append(
            [
                _imported(OffsetKey(group_id, key), found[key])
                for key in sorted(found)
                if key not in waiting
            ]
        )
        log.info(
            "offsets moved to the log group=%s offsets=%d", group_id, len(found) - len(waiting)
        )
        return _Import({key: found[key] for key in waiting})

    async def _remove_nodes(
        self, group_id: str, keys: Sequence[TopicPartition], *, everything: bool
    ) -> dict[TopicPartition, ErrorCode]:
        if everything:
            members = await classic_members(self._coord, group_id)
            if members:
                raise BrokerError(
                    ErrorCode.NON_EMPTY_GROUP,
                    f"before you delete group {group_id}, stop its consumers of Kafka 0.8:"
                    f" {', '.join(members[:10])}",
                )
            code = await remove_group_nodes(self._coord, self.writes, group_id)
            return dict.fromkeys(keys, code)
        codes = await self.writes.write([removal(group_id, key) for key in keys])
        await remove_empty_topics(self._coord, self.writes, group_id, {key.topic for key in keys})
        return dict(zip(keys, codes, strict=True))


def _imported(key: OffsetKey, committed: CommittedOffset) -> KeyValue:
    """Return the record for an offset from ZooKeeper. Metadata that is too long for a record is
    dropped."""
    try:
        return record_of(key, committed)
    except ValueError as error:
        log.error(
            "offset metadata not moved to the log group=%s partition=%s offset=%d reason=%s",
            key.group_id,
            key.topic_partition,
            committed.offset,
            error,
        )
        return record_of(key, dataclasses.replace(committed, metadata=""))
