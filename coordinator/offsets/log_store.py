"""`offsets.storage=kafka`: committed offsets are records of `__consumer_offsets`, as in Apache
Kafka. A fetch returns an offset only after its record is committed.

Offsets are imported from ZooKeeper on two occasions. When the shard loads, it imports the offsets
of all its groups, if the storage mark names ZooKeeper (`storage_mark.py`). At the first request of
a group without any record, the shard imports the group's offsets, since the group may have been a
classic group until now. A record is always newer than the node of the same offset. An import keeps
the nodes, because classic consumers may use them. The deletion of an offset removes its node too;
otherwise a later import would restore the offset.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pybroker.background import BackgroundTask
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
    encode_offset_value,
)
from pybroker.coordinator.offsets.commit_watches import RecentCommits, Watches
from pybroker.coordinator.offsets.log_records import RecordedOffsets, read_offset_record
from pybroker.coordinator.offsets.nodes import OffsetNodes, removal
from pybroker.coordinator.offsets.storage_mark import StorageMark, Stored
from pybroker.coordinator.offsets.zookeeper_store import COMMIT_TIMEOUT_S, check_all, unavailable
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord
from pybroker.coordinator.zookeeper.multi_batcher import Multis
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord, KeyValue

log = logging.getLogger(__name__)

BYTES_PER_APPEND_MAX: Final = 512 * 1024
"""Half of the default limit of a batch."""
_RECORD_OVERHEAD_BYTES: Final = 100


class _ImportLock:
    """The lock of one group's import from ZooKeeper, and the number of callers that hold or await
    the lock."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class LoggedOffsets:
    """The `OffsetStore` of one shard, which stores the offsets in the shard's log. `coord`: a
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
        self._recorded = RecordedOffsets()
        self._appended: deque[tuple[int, OffsetKey, CommittedOffset | None]] = deque()
        """(offset, key, value) of the appended records that are not known to be committed, in log
        order."""
        self._is_loaded = self._has_ended = False
        self._imports: dict[str, _ImportLock] = {}
        self._watcher = BackgroundTask("offset-watcher")
        self._watches = Watches()
        self._nodes = OffsetNodes(coord)
        self.writes = FencedWrites(coord, shard, timeout_s=timeout_s, joint=joint)

    # ---- records

    def replay(self, record: StoredRecord) -> None:
        if not self._is_loaded or record.producer_id >= 0:
            self._recorded.replay(record)
            return
        read = read_offset_record(record)
        if read is not None:
            self._appended.append((record.offset, *read))

    def replay_marker(self, marker: StoredMarker) -> None:
        self._recorded.replay_marker(marker)

    async def loaded(self) -> None:
        """Import the offsets from ZooKeeper if the shard has stored them there until now. Raises
        BrokerError, CoordError."""
        self._is_loaded = True
        mark = StorageMark(self._coord, self.writes, self._shard.partition)
        if await mark.get() is Stored.LOG:
            return
        groups = [name for name in await self._nodes.all_groups() if self._is_mine(name)]
        await bounded_gather(self._import_at_load, sorted(groups))
        await mark.put(Stored.LOG)

    def ended(self) -> None:
        self._has_ended = True
        self.writes.end()
        self._watcher.cancel()

    # ---- requests

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        if self._may_be_new(group_id) and await self._import_in_turn(group_id):
            raise BrokerError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has classic consumers"
            )
        self._watches.note(group_id, offsets)
        codes, records = {}, []
        for key, committed in offsets.items():
            try:
                records.append(_record(OffsetKey(group_id, key), committed))
                codes[key] = ErrorCode.NONE
            except ValueError:
                codes[key] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        await self._append(records)
        return codes

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        found: Mapping[TopicPartition, CommittedOffset]
        found = {}
        if self._may_be_new(group_id):
            found = await self._import_in_turn(group_id)
        await self._shard.confirm_current()
        found = found or self._recorded.of_group(group_id)
        if partitions is None:
            return dict(found)
        return {key: found[key] for key in partitions if key in found}

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        recorded = self._keys(group_id)
        keys = list(recorded if partitions is None else partitions)
        try:
            codes = await self._remove_nodes(group_id, keys, everything=partitions is None)
        except CoordError as error:
            raise unavailable(error) from error
        gone = [key for key in keys if key in recorded and codes[key] is ErrorCode.NONE]
        await self._append(
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
        return dict.fromkeys([*self._recorded.groups(), *of_nodes])

    async def names(self, group_id: str) -> Collection[TopicPartition]:
        return await self._nodes.names(group_id) | self._keys(group_id)

    async def remove_without_recent_commit(
        self, group_id: str, keys: Collection[TopicPartition], recent_commits: RecentCommits
    ) -> None:
        """Remove the offsets of `keys`. First the nodes of all these offsets are removed, because
        the nodes of a group without records would be imported again. Then the offsets that are not
        in `recent_commits` get a tombstone. The check of `recent_commits` and the append of the
        tombstones run in one step of the event loop."""
        codes = await self._remove_nodes(group_id, list(keys), everything=False)
        check_all(codes, group_id)
        recorded = self._keys(group_id)
        gone = [OffsetKey(group_id, key) for key in keys if key in recorded]
        await self._append(
            [KeyValue(encode_offset_key(key), None) for key in gone if key not in recent_commits]
        )

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        return self._recorded.undecided(group_id)

    async def group_ids(self) -> Collection[str]:
        return self._recorded.groups()

    # ---- private: the log

    def _keys(self, group_id: str) -> set[TopicPartition]:
        """Return the group's partitions that have an offset record, committed or only appended."""
        appended = {key.topic_partition for _, key, _ in self._appended if key.group_id == group_id}
        return appended | self._recorded.of_group(group_id).keys()

    async def _append(self, records: Sequence[KeyValue]) -> None:
        """Append the records and wait until they are committed. Raises BrokerError."""
        end = 0
        for some in _cut(records):
            end = self._shard.append(some)
        if not records:
            return
        try:
            await self._shard.committed(end)
        except (Exception, asyncio.CancelledError):  # not GeneratorExit: the process ends then
            if not self._has_ended:
                self._watcher.start(self._watch)
            raise
        self._settle_to(end)

    async def _watch(self) -> None:
        """Wait until all appended records are committed, and make their offsets visible to fetches.
        Needed when a request stops waiting before its records are committed."""
        while self._appended:
            end = self._appended[-1][0] + 1
            try:
                await self._shard.committed(end)
            except BrokerError as error:
                if error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    return
            else:
                self._settle_to(end)

    def _settle_to(self, end: int) -> None:
        while self._appended and self._appended[0][0] < end:
            _, key, committed = self._appended.popleft()
            self._recorded.put(key, committed)

    # ---- private: the nodes

    def _may_be_new(self, group_id: str) -> bool:
        """Return whether ZooKeeper may have offsets of the group that are not imported yet."""
        return group_id in self._imports or not self._recorded.of_group(group_id)

    async def _import_in_turn(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Import the offsets of a group without records, one caller after the other. If the group
        has classic consumers, import nothing and return the group's offsets in ZooKeeper. Raises
        BrokerError."""
        turn = self._imports.setdefault(group_id, _ImportLock())
        turn.count += 1
        try:
            async with asyncio.timeout(self._timeout_s), turn.lock:
                if self._recorded.of_group(group_id):
                    return {}
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
            await self._import_group(group_id)
        except MalformedNode as error:
            log.error("offsets_not_moved_to_the_log group=%s reason=%s", group_id, error)

    async def _import_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Append a record for each of the group's offsets in ZooKeeper that has no record, and
        return an empty mapping. If the group has classic consumers, append nothing and return these
        offsets. Raises BrokerError, CoordError, MalformedNode."""
        names = await self._nodes.names(group_id)
        missing = names - self._recorded.of_group(group_id).keys()
        if not missing:
            return {}
        found = await self._nodes.read(group_id, missing)
        if await classic_members(self._coord, group_id):
            return found
        await self._append(
            [_imported(OffsetKey(group_id, key), found[key]) for key in sorted(found)]
        )
        log.info("offsets_moved_to_the_log group=%s offsets=%d", group_id, len(found))
        return {}

    async def _remove_nodes(
        self, group_id: str, keys: Sequence[TopicPartition], *, everything: bool
    ) -> dict[TopicPartition, ErrorCode]:
        if everything:
            members = await classic_members(self._coord, group_id)
            if members:
                raise BrokerError(
                    ErrorCode.NON_EMPTY_GROUP,
                    f"group {group_id} has classic consumers: {members[:10]}",
                )
            code = await remove_group_nodes(self._coord, self.writes, group_id)
            return dict.fromkeys(keys, code)
        codes = await self.writes.write([removal(group_id, key) for key in keys])
        await remove_empty_topics(self._coord, self.writes, group_id, {key.topic for key in keys})
        return dict(zip(keys, codes, strict=True))


def _record(key: OffsetKey, committed: CommittedOffset) -> KeyValue:
    """Return the offset record. Raises ValueError for text that is too long for a record."""
    return KeyValue(encode_offset_key(key), encode_offset_value(committed))


def _imported(key: OffsetKey, committed: CommittedOffset) -> KeyValue:
    """Return the record for an offset that was read from ZooKeeper. Metadata that is too long for a
    record is dropped: the offsets of one group must not prevent the loading of a whole shard."""
    try:
        return _record(key, committed)
    except ValueError as error:
        log.error(
            "offset_metadata_not_moved_to_the_log group=%s partition=%s offset=%d reason=%s",
            key.group_id,
            key.topic_partition,
            committed.offset,
            error,
        )
        return _record(key, dataclasses.replace(committed, metadata=""))


def _cut(records: Sequence[KeyValue]) -> list[Sequence[KeyValue]]:
    """Divide the records into consecutive parts, each of which fits into one batch."""
    runs: list[Sequence[KeyValue]] = []
    run: list[KeyValue] = []
    size = 0
    for record in records:
        record_size = len(record.key) + len(record.value or b"") + _RECORD_OVERHEAD_BYTES
        if run and size + record_size > BYTES_PER_APPEND_MAX:
            runs.append(run)
            run, size = [], 0
        run.append(record)
        size += record_size
    if run:
        runs.append(run)
    return runs
