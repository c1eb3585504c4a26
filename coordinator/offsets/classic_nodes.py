"""The offsets of OffsetCommit and OffsetFetch version 0, in the nodes `/consumers/<group>/offsets`.
As in Kafka, any broker reads and writes the offsets of any group: no coordinator is needed."""

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
    """Reads and writes offsets below `/consumers`, as Kafka 0.8 does. `timeout_s` applies to
    each partition. `coord` should be a separate session, so that long waits do not delay other
    requests."""

    def __init__(self, coord: Coord, *, timeout_s: float) -> None:
        self._coord = coord
        self._timeout_s = timeout_s

    async def read(
        self, group_id: str, keys: Sequence[TopicPartition]
    ) -> list[int | ErrorCode | None]:
        """Return the committed offset of each key, in the order of `keys`. An element is None if
        the node does not exist, and an error code if the node cannot be read."""

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
        """Write the group's offsets. Return an error code for each partition."""

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
