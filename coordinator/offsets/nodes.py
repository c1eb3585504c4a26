"""Committed offsets as ZooKeeper nodes. An offset has two nodes:
`/consumers/<group>/offsets/<topic>/<partition>`, which tools and consumers of Kafka 0.8 also read
and write, and a node for its details (`zookeeper/offset_details.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.groups.fenced_writes import Change
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.offset_details import (
    OffsetDetails,
    decode_offset_details,
    encode_offset_details,
)
from pybroker.coordinator.zookeeper.schemas import decode_number, encode_number
from pybroker.errors import ConnectionLoss, MalformedNode, NoNode
from pybroker.model import NO_TIMESTAMP, TopicPartition
from pybroker.ports import Coord, NodeStat

log = logging.getLogger(__name__)

T = TypeVar("T")

COMMIT_TIME_TOLERANCE_MS: Final = 60_000
"""A commit time that differs by less than this from the present time is not stored: the node's
modification time is used instead."""
READ_ATTEMPTS_MAX: Final = 3
PARTITION_MAX: Final = 2**31 - 1
UNLISTED_READS_MAX: Final = 8
"""The maximum number of offsets that are read without listing the existing nodes first."""


def commit_change(
    group_id: str, key: TopicPartition, committed: CommittedOffset, now_ms: int
) -> Change:
    """Return the change that writes a committed offset to its offset node and its details node.
    `now_ms` is in ms since 1970. If the commit time is near `now_ms` (COMMIT_TIME_TOLERANCE_MS),
    the time is not stored: readers take the offset node's modification time."""
    own_time = committed.commit_ms != NO_TIMESTAMP and (
        abs(committed.commit_ms - now_ms) > COMMIT_TIME_TOLERANCE_MS
    )
    details = OffsetDetails(
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.commit_ms if own_time else NO_TIMESTAMP,
        committed.expire_ms,
    )
    is_plain = details == OffsetDetails(committed.offset)
    nodes = (
        (paths.offset(group_id, key), encode_number(committed.offset)),
        (
            paths.offset_details(group_id, key),
            None if is_plain else encode_offset_details(details),
        ),
    )
    return Change(group_id, (group_id, key), nodes, (paths.group_details(group_id),))


def removal(group_id: str, key: TopicPartition) -> Change:
    """Return the change of nodes that removes a committed offset."""
    nodes = (
        (paths.offset(group_id, key), None),
        (paths.offset_details(group_id, key), None),
    )
    return Change(group_id, (group_id, key), nodes)


class OffsetNodes:
    """Reads offsets from ZooKeeper. A read in a new session never returns an older state than a
    read in an earlier session. All methods may raise CoordError."""

    def __init__(self, coord: Coord) -> None:
        self._coord = coord
        self._synced = 0
        """The generation of the last session that has synced."""

    async def read(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of these partitions (None: all). Raises MalformedNode if the
        content of an offset's ZooKeeper node is not a number."""
        if not group_id:  # Kafka allows the empty group id; a node cannot have an empty name
            return {}

        async def read() -> dict[TopicPartition, CommittedOffset]:
            if partitions is None:
                keys = await self._all(group_id)
            else:
                keys = await self._existing_of(group_id, list(dict.fromkeys(partitions)))
            details, found = await asyncio.gather(
                self._details(group_id, keys),
                bounded_gather(lambda key: self._offset(group_id, key), keys),
            )
            return {
                key: _committed(*each, details.get(key))
                for key, each in zip(keys, found, strict=True)
                if each is not None
            }

        return await self.in_one_session(read)

    async def names(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions for which the group has an offset in ZooKeeper."""
        if not group_id:
            return set()

        async def read() -> set[TopicPartition]:
            return set(await self._all(group_id))

        return await self.in_one_session(read)

    async def coordinated_groups(self) -> set[str]:
        """Return the groups for which a coordinator has stored offsets."""

        async def read() -> set[str]:
            return {paths.decode_name(name) for name in await self.children(paths.COMMITTED)}

        return await self.in_one_session(read)

    async def all_groups(self) -> set[str]:
        """Return every group with a node below `/consumers`, including groups with consumers of
        Kafka 0.8."""

        async def read() -> set[str]:
            return {paths.decode_name(name) for name in await self.children(paths.CONSUMERS)}

        return await self.in_one_session(read)

    async def in_one_session(self, read: Callable[[], Awaitable[T]]) -> T:
        """Call `read` in one ZooKeeper session, after a `sync` in this session, and return the
        result. If the session ends during `read`, `read` is called again. Raises ConnectionLoss
        after READ_ATTEMPTS_MAX calls."""
        for _ in range(READ_ATTEMPTS_MAX):
            generation = self._coord.generation
            if generation != self._synced:
                await self._coord.sync()
            result = await read()
            if self._coord.generation == generation:
                self._synced = generation
                return result
        raise ConnectionLoss(
            f"the ZooKeeper session ended in each of {READ_ATTEMPTS_MAX} attempts to read offsets"
        )

    async def children(self, path: str) -> list[str]:
        """Return the names of the node's children; empty if the node does not exist."""
        try:
            return await self._coord.children(path)
        except NoNode:
            return []

    async def _all(self, group_id: str) -> list[TopicPartition]:
        return await self._partitions_below(paths.group_offsets(group_id))

    async def _existing_of(
        self, group_id: str, wanted: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions to read: all of `wanted` if there are at most UNLISTED_READS_MAX,
        otherwise only those that have a node."""
        if len(wanted) <= UNLISTED_READS_MAX:
            return wanted
        root = paths.group_offsets(group_id)
        topics = {paths.encode_name(key.topic) for key in wanted}
        existing = set(
            await self._partitions_of(root, sorted(topics.intersection(await self.children(root))))
        )
        return [key for key in wanted if key in existing]

    async def _details(
        self, group_id: str, keys: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetDetails | None]:
        """Return partition -> details of the committed offset; None if the details node is
        malformed. A partition without a details node has None, or is omitted if there are more than
        UNLISTED_READS_MAX keys."""
        if len(keys) > UNLISTED_READS_MAX:
            root = paths.group_details(group_id)
            topics = dict.fromkeys(paths.encode_name(key.topic) for key in keys)
            existing = set(await self._partitions_of(root, list(topics)))
            keys = [key for key in keys if key in existing]
        details = await bounded_gather(lambda key: self._details_of(group_id, key), keys)
        return dict(zip(keys, details, strict=True))

    async def _partitions_below(self, root: str) -> list[TopicPartition]:
        return await self._partitions_of(root, await self.children(root))

    async def _partitions_of(self, root: str, topics: Sequence[str]) -> list[TopicPartition]:
        """Return the partitions with a node below `root`; `topics` are encoded names."""
        numbers = await bounded_gather(lambda name: self.children(f"{root}/{name}"), topics)
        return [
            TopicPartition(paths.decode_name(name), number)
            for name, names in zip(topics, numbers, strict=True)
            for number in partition_numbers(names)
        ]

    async def _offset(self, group_id: str, key: TopicPartition) -> tuple[int, NodeStat] | None:
        path = paths.offset(group_id, key)
        try:
            data, stat = await self._coord.get(path)
        except NoNode:
            return None
        return decode_number(path, data), stat

    async def _details_of(self, group_id: str, key: TopicPartition) -> OffsetDetails | None:
        path = paths.offset_details(group_id, key)
        try:
            return decode_offset_details(path, (await self._coord.get(path))[0])
        except NoNode:
            return None
        except MalformedNode as error:
            log.warning("offset details ignored reason=%s", error)
            return None


def _committed(offset: int, stat: NodeStat, details: OffsetDetails | None) -> CommittedOffset:
    if details is None or details.offset != offset:
        return CommittedOffset(offset, commit_ms=stat.mtime_ms)
    return CommittedOffset(
        offset,
        details.leader_epoch,
        details.metadata,
        stat.mtime_ms if details.commit_ms == NO_TIMESTAMP else details.commit_ms,
        details.expire_ms,
    )


def partition_numbers(names: Iterable[str]) -> list[int]:
    """Return the partition numbers among these names of nodes. Other names are ignored."""
    return sorted(
        number
        for name in names
        if name.isascii() and name.isdigit() and len(name) <= len(str(PARTITION_MAX))
        if (number := int(name)) <= PARTITION_MAX
    )
