"""Appends and replays the offset records in a shard's log, for both offset stores (`log_store.py`,
`zookeeper_store.py`). A record takes effect when the in-sync replicas have the record or, in a
transaction, the commit marker.

Records and markers always take effect in log order, so a shard that has loaded a log and a shard
that wrote the log have the same state.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import (
    OffsetKey,
    encode_offset_key,
    encode_offset_value,
)
from pybroker.coordinator.offsets.log_records import (
    Ended,
    OffsetRecord,
    RecordedOffsets,
    read_offset_record,
)
from pybroker.coordinator.runtime.shard import ShardContext, StoredMarker, StoredRecord
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import NO_OFFSET, TopicPartition
from pybroker.ports import KeyValue, Producer

BYTES_PER_APPEND_MAX: Final = 512 * 1024
"""Half of the default limit of a batch."""
_RECORD_OVERHEAD_BYTES: Final = 100


class OffsetLog:
    """The offset records of one shard. After a call of `begin`, the callback `ended` gets each
    transaction whose marker the in-sync replicas have. When the transaction's offsets have taken
    effect, the owner of the OffsetLog must call `recorded.release`."""

    def __init__(self, shard: ShardContext, ended: Callable[[Ended], None]) -> None:
        self.recorded = RecordedOffsets()
        self.last_marker = NO_OFFSET
        """The offset of the last marker that was read before `begin`."""
        self._shard = shard
        self._ended = ended
        self._queue: deque[OffsetRecord | StoredMarker] = deque()
        """The records and markers that are not known to be committed, in log order."""
        self._ending: Counter[int] = Counter()
        """Producer id -> the number of its markers in the queue."""
        self._has_begun = self._has_ended = False
        self._watcher = BackgroundTask("offset-watcher")

    def replay(self, record: StoredRecord) -> None:
        """Replay an offset record. A record of another kind, or one that cannot be decoded, has no
        effect."""
        read = read_offset_record(record)
        if read is None:
            return
        if read.is_transactional:
            self.recorded.pending.add(read.key, read.producer_id, read.committed)
        if self._has_begun:
            self._queue.append(read)
        else:
            self.recorded.replay(read)

    def replay_marker(self, marker: StoredMarker) -> None:
        if self._has_begun:
            self._queue.append(marker)
            self._ending[marker.producer_id] += 1
            self._watcher.start(self._watch)
        else:
            self.recorded.release(self.recorded.replay_marker(marker))
            self.last_marker = marker.offset

    def begin(self) -> None:
        """Record that the whole log has been replayed. From now on, an appended record or
        transaction marker takes effect only when the in-sync replicas have it. Idempotent."""
        self._has_begun = True

    def end(self) -> None:
        """Stop waiting for commits. Idempotent."""
        self._has_ended = True
        self._watcher.cancel()

    async def append(self, records: Sequence[KeyValue], producer: Producer | None = None) -> None:
        """Append the records and wait until the in-sync replicas have them. Records outside a
        transaction are then in effect. Raises BrokerError."""
        end = 0
        for some in _cut(records):
            end = self._shard.append(some, producer)
        if not records:
            return
        try:
            await self._shard.committed(end)
        except (Exception, asyncio.CancelledError):  # not GeneratorExit: the process ends then
            if not self._has_ended:
                self._watcher.start(self._watch)
            raise
        self._settle_to(end)

    def keys(self, group_id: str) -> set[TopicPartition]:
        """Return the group's partitions that have an offset record, even if the in-sync replicas do
        not have the record yet."""
        queued = {
            each.key.topic_partition
            for each in self._queue
            if isinstance(each, OffsetRecord) and each.key.group_id == group_id
        }
        return {*queued, *self.recorded.of_group(group_id), *self.undecided(group_id)}

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which the group has a transactional offset that is not in
        effect yet. The transaction is still open, or it is committed and its offsets take effect
        soon."""
        return self.recorded.pending.of_group(group_id)

    def is_ending(self, key: OffsetKey) -> bool:
        """Whether a transaction with an offset of `key` is about to end: its marker is in the log,
        but the in-sync replicas do not have the marker yet."""
        return any(each in self._ending for each in self.recorded.pending.producers(key))

    def groups(self) -> list[str]:
        """Return the groups with committed offsets, or with transactional offsets that are not in
        effect yet."""
        return [*dict.fromkeys([*self.recorded.groups(), *self.recorded.pending.groups()])]

    async def _watch(self) -> None:
        """Apply the queued records and markers to `recorded` when the in-sync replicas have
        them."""
        while self._queue:
            end = self._queue[-1].offset + 1
            try:
                await self._shard.committed(end)
            except BrokerError as error:
                if error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    return
            else:
                self._settle_to(end)

    def _settle_to(self, end: int) -> None:
        while self._queue and self._queue[0].offset < end:
            each = self._queue.popleft()
            if isinstance(each, OffsetRecord):
                self.recorded.replay(each)
            else:
                self._ending[each.producer_id] -= 1
                if not self._ending[each.producer_id]:
                    del self._ending[each.producer_id]
                self._ended(self.recorded.replay_marker(each))


def records_of(
    group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> tuple[dict[TopicPartition, ErrorCode], list[KeyValue]]:
    """Return (error code for each partition, records of the offsets without an error)."""
    codes, records = {}, []
    for key, committed in offsets.items():
        try:
            records.append(record_of(OffsetKey(group_id, key), committed))
            codes[key] = ErrorCode.NONE
        except ValueError:
            codes[key] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return codes, records


def record_of(key: OffsetKey, committed: CommittedOffset) -> KeyValue:
    """Return the offset record. Raises ValueError for text that is too long for a record."""
    return KeyValue(encode_offset_key(key), encode_offset_value(committed))


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
