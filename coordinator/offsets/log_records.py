"""The committed offsets in the log of a shard, read by replaying its records. Both stores use this.

A record of a transaction takes effect at the commit marker, and never if the transaction aborts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import OffsetKey, decode_key, decode_offset_value
from pybroker.coordinator.runtime.shard import StoredMarker, StoredRecord
from pybroker.errors import MalformedInput
from pybroker.model import NO_TIMESTAMP, TopicPartition

log = logging.getLogger(__name__)

_NO_PRODUCER = -1


class RecordedOffsets:
    """The committed offsets according to the replayed records."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._open: dict[int, dict[OffsetKey, CommittedOffset | None]] = {}
        """Producer id -> the offsets that its open transaction would commit."""

    def replay(self, record: StoredRecord) -> None:
        """Replay a record. A record that is not an offset record, or that cannot be decoded, has no
        effect."""
        read = read_offset_record(record)
        if read is None:
            return
        key, committed = read
        if record.producer_id == _NO_PRODUCER:
            self.put(key, committed)
        else:
            self._open.setdefault(record.producer_id, {})[key] = committed

    def replay_marker(self, marker: StoredMarker) -> None:
        pending = self._open.pop(marker.producer_id, {})
        if marker.is_commit:
            for key, committed in pending.items():
                self.put(key, committed)

    def put(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        """Set the committed offset of `key`; None removes the committed offset."""
        if committed is not None:
            self._by_group.setdefault(key.group_id, {})[key.topic_partition] = committed
            return
        of_group = self._by_group.get(key.group_id)
        if of_group is not None:
            of_group.pop(key.topic_partition, None)
            if not of_group:
                del self._by_group[key.group_id]

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._by_group.get(group_id, {})

    def groups(self) -> list[str]:
        return list(self._by_group)

    def items(self) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        for group_id, offsets in self._by_group.items():
            for key, committed in offsets.items():
                yield OffsetKey(group_id, key), committed

    def undecided(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions for which an open transaction would commit an offset of the
        group."""
        return {
            key.topic_partition
            for pending in self._open.values()
            for key in pending
            if key.group_id == group_id
        }


def read_offset_record(
    record: StoredRecord,
) -> tuple[OffsetKey, CommittedOffset | None] | None:
    """Return (key, committed offset); the offset is None for a tombstone. Return None if the record
    is not an offset record, or cannot be decoded."""
    if record.key is None:
        return None
    try:
        key = decode_key(record.key)
        if not isinstance(key, OffsetKey):
            return None
        if record.value is None:
            return key, None
        committed = decode_offset_value(record.value)
    except MalformedInput as error:
        log.error("offset_record_ignored offset=%d reason=%s", record.offset, error)
        return None
    if committed.commit_ms == NO_TIMESTAMP:
        committed = CommittedOffset(
            committed.offset,
            committed.leader_epoch,
            committed.metadata,
            record.timestamp,
            committed.expire_ms,
        )
    return key, committed
