"""Committed offsets, and the interface of an offset store.

There are two stores, `offsets.storage=zookeeper` and `offsets.storage=kafka`. A group uses both in
the same way. The group decides whether a commit is allowed; the store does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from pybroker.coordinator.runtime.shard import StoredMarker, StoredRecord
from pybroker.errors import ErrorCode
from pybroker.model import NO_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of a partition: `offset` is the offset of the next record to read.
    `commit_ms` in ms since 1970; `expire_ms` is -1 unless the client set a retention time in its
    commit."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1


class OffsetStore(Protocol):
    """The offsets of all groups of one shard. Every method may raise BrokerError with the code for
    the whole request."""

    def replay(self, record: StoredRecord) -> None:
        """Replay an offset record of the log (key version 0 or 1)."""

    def replay_marker(self, marker: StoredMarker) -> None: ...

    async def loaded(self) -> None: ...

    def ended(self) -> None: ...

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Store the offsets. When each offset is committed or refused, return an error code for
        each partition. Two commits of one group take effect in the order of the calls."""

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of these partitions (None: of all). The result excludes
        partitions without a committed offset."""

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Delete the group's offsets of these partitions (None: of all). Return an error code for
        each partition."""

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which an open transaction has a pending offset commit."""

    async def group_ids(self) -> Collection[str]:
        """Return the ids of the groups of this shard that have offsets in this store."""
