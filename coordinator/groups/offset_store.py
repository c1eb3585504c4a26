"""Where committed offsets are kept: the values, and the seam between groups and a store.

There are two stores, `offsets.storage=zookeeper` and `=kafka`; a group does not know which one it
has. Who may commit is the group's business, not the store's.
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
    """How far a group has read a partition: `offset` is the next record's. `commit_ms` in ms since
    1970; `expire_ms` only where the client asked for a retention of its own, else -1."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1


class OffsetStore(Protocol):
    """The offsets of all groups of one shard. Everything may raise BrokerError with the code for
    the whole request."""

    def replay(self, record: StoredRecord) -> None:
        """An offset record of the log (key version 0 or 1)."""

    def replay_marker(self, marker: StoredMarker) -> None: ...

    async def loaded(self) -> None: ...

    def ended(self) -> None: ...

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Store them; an answer for every one of them, when it is committed. Two commits of one
        group take effect in the order of the calls."""

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """What is committed of these, or (None) of all. Missing where there is nothing."""

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Forget these, or (None) all of the group."""

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions for which a transaction that is still open would commit an offset."""

    async def group_ids(self) -> Collection[str]:
        """The groups of this shard that have offsets here."""
