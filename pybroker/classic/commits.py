"""Committed offsets in the ZooKeeper nodes /consumers/<group>/offsets/<topic>/<partition>.

The transaction (multi) that writes an offset also checks the owner node and the topic. So a member
with an expired session writes nothing, and a deleted topic gets no offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from pybroker.classic.partition_owners import OwnedPartition
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import CoordError, MultiFailed, NodeExists, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import CheckOp, Coord, CoordOp, CreateOp, SetOp

_ATTEMPTS_MAX: Final = 10


class Progress(NamedTuple):
    """The committed offsets of one partition (None: not committed). A new owner starts to read at
    `start`. `stored` is the offset in the store that offsets.storage names.

    `start` and `stored` differ only with dual.commit.enabled: `start` is then the larger of the
    offsets in Kafka and in ZooKeeper.
    """

    start: int | None
    stored: int | None


class OffsetStore(Protocol):
    """The store of a group's offsets."""

    async def read(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Progress]: ...

    async def write(
        self,
        owned_partitions: Iterable[OwnedPartition],
        exact: Mapping[TopicPartition, int] | None = None,
    ) -> list[OwnedPartition]: ...


class Offsets:
    """The committed offsets of one group, for the partitions that this member owns."""

    def __init__(self, coord: Coord, group_id: str, *, sessions_ended: Callable[[], int]) -> None:
        """`sessions_ended` returns how many ZooKeeper sessions of this member have ended so far."""
        self._coord = coord
        self._group_id = group_id
        self._sessions_ended = sessions_ended
        self._writing = asyncio.Lock()
        """Held during a whole commit, so that an older offset never replaces a newer one. Its
        holder waits only for ZooKeeper."""

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Progress]:
        """Return the offset of each of these partitions in ZooKeeper, as both `start` and `stored`.
        Raises CoordError, MalformedNode."""
        offsets = await asyncio.gather(*(self._read_one(key) for key in partitions))
        return {
            key: Progress(offset, offset) for key, offset in zip(partitions, offsets, strict=True)
        }

    async def write(
        self,
        owned_partitions: Iterable[OwnedPartition],
        exact: Mapping[TopicPartition, int] | None = None,
    ) -> list[OwnedPartition]:
        """Store one offset for each partition: the consumed offset if `exact` is None, otherwise
        the offset in `exact`. Return the partitions that this member no longer owns. Raises
        CoordError if ZooKeeper did not confirm every write."""
        async with self._writing:
            outcomes = await asyncio.gather(
                *(self._write_one(owned, exact) for owned in owned_partitions),
                return_exceptions=True,
            )
        lost = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                lost.append(outcome)
        return lost

    async def disowned(self, owned_partitions: Collection[OwnedPartition]) -> list[OwnedPartition]:
        """Return the partitions that this member no longer owns. A multi checks each owner node.
        ZooKeeper's leader executes every multi, so the result is current. Raises CoordError."""
        outcomes = await asyncio.gather(*(self._is_disowned(owned) for owned in owned_partitions))
        return [owned for owned, gone in zip(owned_partitions, outcomes, strict=True) if gone]

    async def _is_disowned(self, owned: OwnedPartition) -> bool:
        if owned.released or owned.sessions_ended != self._sessions_ended():
            return True
        try:
            await self._coord.multi(self._checks(owned))
        except MultiFailed as error:
            if not isinstance(error.cause, NoNode):
                raise
            return True
        return owned.released or owned.sessions_ended != self._sessions_ended()

    def _checks(self, owned: OwnedPartition) -> list[CoordOp]:
        """Return the operations that check that the partition's owner node and its topic still
        exist."""
        key = owned.topic_partition
        return [
            CheckOp(paths.group_owner(self._group_id, key), -1),
            CheckOp(paths.topic(key.topic), -1),
        ]

    async def _read_one(self, partition: TopicPartition) -> int | None:
        path = paths.offset(self._group_id, partition)
        try:
            data, _ = await self._coord.get(path)
        except NoNode:
            return None
        offset = schemas.decode_number(path, data)
        return None if offset < 0 else offset

    async def _write_one(
        self, owned: OwnedPartition, exact: Mapping[TopicPartition, int] | None
    ) -> OwnedPartition | None:
        """Store the offset of one partition. Return None if it is stored, or the partition if this
        member no longer owns it."""
        key = owned.topic_partition
        offset = owned.consumed if exact is None else exact[key]
        if offset is None or offset == owned.stored:
            return None
        path = paths.offset(self._group_id, key)
        data = schemas.encode_number(offset)
        exists = owned.stored is not None
        for _ in range(_ATTEMPTS_MAX):
            if owned.released or owned.sessions_ended != self._sessions_ended():
                return owned
            last = SetOp(path, data) if exists else CreateOp(path, data)
            try:
                await self._coord.multi([*self._checks(owned), last])
            except MultiFailed as error:
                match error.index, error.cause:
                    case 0 | 1, NoNode():
                        return owned
                    case 2, NodeExists():
                        exists = True
                    case 2, NoNode():
                        # Another client removed the offset node, with or without the topic.
                        topic = await self._coord.exists(paths.topic(key.topic))
                        if topic is None or topic.czxid != owned.topic_czxid:
                            return owned
                        await ensure(self._coord, paths.parent(path))
                        exists = False
                    case _:
                        raise
            else:
                owned.stored = offset
                return None
        raise CoordError(
            f"the offset node {path} could not be written: other clients keep creating and"
            " removing it"
        )
