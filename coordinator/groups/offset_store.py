"""Committed offsets, and the interface of the two offset stores (`offsets.storage=zookeeper` and
`offsets.storage=kafka`). The group decides whether a commit is allowed; the store does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pybroker.coordinator.runtime.shard import StoredMarker, StoredRecord
from pybroker.errors import ErrorCode
from pybroker.model import NO_EPOCH, TopicPartition
from pybroker.ports import Producer

PENDING_BYTES: Final = 1000
"""About how many bytes of memory an offset of an open transaction takes, without its names and
metadata."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of a partition. Times are in ms since 1970. `expire_ms` is -1 if
    the commit had no retention time."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1


def pending_bytes(group_id: str, key: TopicPartition, committed: CommittedOffset | None) -> int:
    """Return the approximate memory of an offset of an open transaction, in bytes. A character
    counts as a byte."""
    metadata = "" if committed is None else committed.metadata
    return PENDING_BYTES + len(group_id) + len(key.topic) + len(metadata)


class OffsetStore(Protocol):
    """The offsets of all groups of one shard. Every method may raise BrokerError. The error then
    applies to all partitions of the call."""

    def replay(self, record: StoredRecord) -> None:
        """Replay an offset record of the log (key version 0 or 1)."""

    def replay_marker(self, marker: StoredMarker) -> None: ...

    async def loaded(self) -> None: ...

    def ended(self) -> None: ...

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Wait until each offset is stored or refused, and return an error code for each partition.
        Two commits of one group take effect in the order of the calls."""

    async def prepare(self, group_id: str) -> None:
        """Make the store ready for `commit_in_transaction` of this group."""

    async def commit_in_transaction(
        self, group_id: str, producer: Producer, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Append the offsets to the producer's open transaction, wait until the records are
        replicated, and return an error code for each partition. No await is allowed before the
        append: the caller's membership check must still hold."""

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets of these partitions (None: all partitions). A
        partition without a committed offset is not in the result."""

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]:
        """Return partition -> committed offset, for reports only: recent commits may be missing,
        and another broker may be the coordinator. Two calls for one group must not overlap."""

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Delete the group's offsets of these partitions (None: all). Return an error code for each
        partition."""

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which the group has an offset of an open transaction, or of a
        committed transaction whose offsets are not in effect yet."""

    def undecided_bytes(self) -> int:
        """Return the approximate memory of all transactional offsets that are not in effect yet, in
        bytes."""

    async def group_ids(self) -> Collection[str]:
        """Return the ids of this shard's groups that have committed offsets, or transactional
        offsets that are not in effect yet."""
