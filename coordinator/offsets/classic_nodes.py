"""Offsets as version 0 of OffsetCommit and OffsetFetch mean them: the classic nodes and nothing
else, by any broker, for any group, without a coordinator or a fence. So did Kafka 0.8.1, and every
release with ZooKeeper after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.coordinator.zookeeper.schemas import decode_number, encode_number
from pybroker.errors import CoordError, ErrorCode, MalformedNode, NodeExists, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord


class ClassicOffsets:
    """Over a session that nothing else waits for."""

    def __init__(self, coord: Coord, *, timeout_s: float) -> None:
        self._coord = coord
        self._timeout_s = timeout_s

    async def read(
        self, group_id: str, keys: Sequence[TopicPartition]
    ) -> list[int | ErrorCode | None]:
        """For each what its node holds, None if there is none, or why that is not known."""

        async def read(key: TopicPartition) -> int | ErrorCode | None:
            path = paths.offset(group_id, key)
            try:
                async with asyncio.timeout(self._timeout_s):
                    return decode_number(path, (await self._coord.get(path))[0])
            except NoNode:
                return None
            except MalformedNode:
                return ErrorCode.UNKNOWN_SERVER_ERROR
            except (CoordError, TimeoutError):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE

        return await bounded_gather(read, keys)

    async def write(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ErrorCode]:
        """A code for each."""

        async def write(key: TopicPartition) -> ErrorCode:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._write(paths.offset(group_id, key), encode_number(offsets[key]))
            except (CoordError, TimeoutError):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            return ErrorCode.NONE

        keys = list(offsets)
        return dict(zip(keys, await bounded_gather(write, keys), strict=True))

    async def _write(self, path: str, data: bytes) -> None:
        try:
            await self._coord.set(path, data)
            return
        except NoNode:
            await ensure(self._coord, paths.parent(path))
        with suppress(NodeExists):
            await self._coord.create(path, data)
            return
        await self._coord.set(path, data)
