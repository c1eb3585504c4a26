"""An offset store in memory, for the tests of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.runtime.shard import StoredMarker, StoredRecord
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Producer


class MemoryOffsets:
    """An `OffsetStore` with at most one partition."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.pending: set[str] = set()
        """The groups with an offset of an open transaction."""
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fails = False

    def replay(self, record: StoredRecord) -> None: ...

    def replay_marker(self, marker: StoredMarker) -> None: ...

    async def loaded(self) -> None: ...

    def ended(self) -> None: ...

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.groups.add(group_id)
        return dict.fromkeys(offsets, ErrorCode.NONE)

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        known = group_id in self.groups
        return {TopicPartition("load", 0): CommittedOffset(1)} if known else {}

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]:
        found = await self.fetch(group_id, None)
        return {key: committed.offset for key, committed in found.items()}

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, ErrorCode]:
        await self.go_on.wait()
        if self.fails:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the test makes deletions fail")
        self.groups.discard(group_id)
        self.pending.discard(group_id)
        return {}

    async def prepare(self, group_id: str) -> None: ...

    async def commit_in_transaction(
        self, group_id: str, producer: Producer, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.pending.add(group_id)
        return dict.fromkeys(offsets, ErrorCode.NONE)

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        return [TopicPartition("load", 0)] if group_id in self.pending else []

    def undecided_bytes(self) -> int:
        return len(self.pending)

    async def group_ids(self) -> Collection[str]:
        return self.groups | self.pending
