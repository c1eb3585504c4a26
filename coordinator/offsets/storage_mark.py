"""The storage mark: a node that names the offset store of a shard. If the mark names the other
store, the shard migrates the offsets and then changes the mark, so later loads do not migrate
again."""

from __future__ import annotations

import enum

from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode, NoNode
from pybroker.ports import Coord


class Stored(enum.Enum):
    """The content of the storage mark: the name of an offset store."""

    ZOOKEEPER = b"zookeeper"
    LOG = b"kafka"


class StorageMark:
    """The storage mark of one shard."""

    def __init__(self, coord: Coord, writes: FencedWrites, partition: int) -> None:
        self._coord = coord
        self._writes = writes
        self._path = paths.offsets_stored(partition)

    async def get(self) -> Stored | None:
        """Return the store that the mark names; None if the node does not exist, or if its content
        is unknown. Raises CoordError."""
        try:
            data, _ = await self._coord.get(self._path)
        except NoNode:
            return None
        return next((stored for stored in Stored if stored.value == data), None)

    async def put(self, stored: Stored) -> None:
        """Write the store's name into the mark. Raises BrokerError, CoordError."""
        if await self.get() is stored:
            return
        change = Change("", self._path, ((self._path, stored.value),))
        (code,) = await self._writes.write([change])
        if code is not ErrorCode.NONE:
            raise BrokerError(code, f"{self._path} cannot be written")
