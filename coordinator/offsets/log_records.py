"""Finds the committed offsets of a shard by replaying the offset records in its log.

A transaction's record takes effect at the commit marker. For one group and partition, the effective
record with the highest log offset wins, because compaction keeps only that record.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pybroker.coordinator.groups.offset_store import CommittedOffset, pending_bytes
from pybroker.coordinator.groups.records import OffsetKey, decode_key, decode_offset_value
from pybroker.coordinator.runtime.shard import StoredMarker, StoredRecord
from pybroker.errors import MalformedInput
from pybroker.model import NO_OFFSET, NO_TIMESTAMP, TopicPartition

log = logging.getLogger(__name__)


class OffsetRecord(NamedTuple):
    """A decoded offset record. `committed` is None for a tombstone; `producer_id` is -1 outside a
    transaction."""

    key: OffsetKey
    committed: CommittedOffset | None
    offset: int
    producer_id: int

    @property
    def is_transactional(self) -> bool:
        return self.producer_id >= 0


class Recorded(NamedTuple):
    """A committed offset, the log offset of its record, and the log offset of its commit marker (-1
    outside a transaction)."""

    committed: CommittedOffset
    record_offset: int
    marker_offset: int = NO_OFFSET


class _Pending(NamedTuple):
    """An offset record of an open transaction. A commit of the transaction stores `committed`, or
    removes the committed offset if `committed` is None."""

    committed: CommittedOffset | None
    record_offset: int


class PendingKeys:
    """The groups and partitions for which transactions have offsets that are not in effect yet. For
    each group and partition, the offset records are counted by producer id."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, dict[int, int]]] = {}
        self.bytes_used = 0

    def add(self, key: OffsetKey, producer_id: int, committed: CommittedOffset | None) -> None:
        of_group = self._by_group.setdefault(key.group_id, {})
        counts = of_group.setdefault(key.topic_partition, {})
        counts[producer_id] = counts.get(producer_id, 0) + 1
        self.bytes_used += pending_bytes(key.group_id, key.topic_partition, committed)

    def discard(self, key: OffsetKey, producer_id: int, committed: CommittedOffset | None) -> None:
        """Undo one call of `add` with the same arguments."""
        of_group = self._by_group[key.group_id]
        counts = of_group[key.topic_partition]
        counts[producer_id] -= 1
        self.bytes_used -= pending_bytes(key.group_id, key.topic_partition, committed)
        if not counts[producer_id]:
            del counts[producer_id]
        if not counts:
            del of_group[key.topic_partition]
        if not of_group:
            del self._by_group[key.group_id]

    def producers(self, key: OffsetKey) -> list[int]:
        return list(self._by_group.get(key.group_id, {}).get(key.topic_partition, ()))

    def of_group(self, group_id: str) -> Collection[TopicPartition]:
        return self._by_group.get(group_id, {}).keys()

    def groups(self) -> list[str]:
        return list(self._by_group)


class Ended(NamedTuple):
    """A transaction that has ended. `offsets` has the offsets that the transaction commits. An
    offset is left out if a newer record for its group and partition took effect before the
    transaction ended. A value of None removes the committed offset. After an abort, `offsets` is
    empty."""

    producer_id: int
    marker_offset: int
    offsets: dict[OffsetKey, CommittedOffset | None]


class RecordedOffsets:
    """The committed offsets in the replayed records. `pending` has the transactional offsets that
    are not in effect yet.

    The caller must add a transactional offset to `pending` before it replays the offset's record.
    The caller must call `release` when the offsets of a committed transaction have taken effect.
    """

    def __init__(self) -> None:
        self.pending = PendingKeys()
        self._by_group: dict[str, dict[TopicPartition, Recorded]] = {}
        self._open: dict[int, dict[OffsetKey, _Pending]] = {}
        """Producer id -> the offsets that its open transaction would commit."""

    def replay(self, record: OffsetRecord) -> None:
        key, committed, offset, producer_id = record
        if record.is_transactional:
            of_producer = self._open.setdefault(producer_id, {})
            before = of_producer.get(key)
            of_producer[key] = _Pending(committed, offset)
            if before is not None:
                self.pending.discard(key, producer_id, before.committed)
        elif committed is not None:
            self._put(key, Recorded(committed, offset))
        else:
            self.forget(key)
            self._drop_pending(key)

    def replay_marker(self, marker: StoredMarker) -> Ended:
        """End the producer's transaction. Return the offsets that the transaction commits: none for
        an abort marker."""
        taken = self._open.pop(marker.producer_id, {})
        offsets: dict[OffsetKey, CommittedOffset | None] = {}
        for key, (committed, record_offset) in taken.items():
            if marker.is_commit and self._is_newest(key, record_offset):
                offsets[key] = committed
                if committed is None:
                    self.forget(key)
                else:
                    self._put(key, Recorded(committed, record_offset, marker.offset))
            else:
                self.pending.discard(key, marker.producer_id, committed)
        return Ended(marker.producer_id, marker.offset, offsets)

    def release(self, ended: Ended) -> None:
        """Remove the offsets of an ended transaction from `pending`, after they have taken
        effect."""
        for key, committed in ended.offsets.items():
            self.pending.discard(key, ended.producer_id, committed)

    def forget(self, key: OffsetKey) -> None:
        of_group = self._by_group.get(key.group_id)
        if of_group is not None:
            of_group.pop(key.topic_partition, None)
            if not of_group:
                del self._by_group[key.group_id]

    def of_group(self, group_id: str) -> Mapping[TopicPartition, Recorded]:
        return self._by_group.get(group_id, {})

    def groups(self) -> list[str]:
        return list(self._by_group)

    def items(self) -> Iterator[tuple[OffsetKey, Recorded]]:
        for group_id, offsets in self._by_group.items():
            for key, recorded in offsets.items():
                yield OffsetKey(group_id, key), recorded

    def _put(self, key: OffsetKey, recorded: Recorded) -> None:
        self._by_group.setdefault(key.group_id, {})[key.topic_partition] = recorded

    def _is_newest(self, key: OffsetKey, record_offset: int) -> bool:
        known = self._by_group.get(key.group_id, {}).get(key.topic_partition)
        return known is None or known.record_offset < record_offset

    def _drop_pending(self, key: OffsetKey) -> None:
        for producer_id in self.pending.producers(key):
            dropped = self._open.get(producer_id, {}).pop(key, None)
            if dropped is not None:
                self.pending.discard(key, producer_id, dropped.committed)


def read_offset_record(record: StoredRecord) -> OffsetRecord | None:
    """Return the decoded record; None if it is not an offset record, or cannot be decoded."""
    if record.key is None:
        return None
    try:
        key = decode_key(record.key)
        if not isinstance(key, OffsetKey):
            return None
        committed = None if record.value is None else decode_offset_value(record.value)
    except MalformedInput as error:
        log.error("offset record ignored offset=%d reason=%s", record.offset, error)
        return None
    if committed is not None and committed.commit_ms == NO_TIMESTAMP:
        committed = dataclasses.replace(committed, commit_ms=record.timestamp)
    return OffsetRecord(key, committed, record.offset, record.producer_id)
