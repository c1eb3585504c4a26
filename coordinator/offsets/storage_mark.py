"""The node that names the offset store of a shard. A store that finds the other store's name there
migrates the offsets once, and not again at every load."""

from __future__ import annotations

import enum

from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode, NoNode
from pybroker.ports import Coord


class Stored(enum.Enum):
    """The content of the node."""

    ZOOKEEPER = b"zookeeper"
    LOG = b"kafka"


class StorageMark:
    """The mark of one shard."""

    def __init__(self, coord: Coord, writes: FencedWrites, partition: int) -> None:
        self._coord = coord
        self._writes = writes
        self._path = paths.offsets_stored(partition)

    async def get(self) -> Stored | None:
        """Return the store that the node names; None if there is no node, or if its content is
        unknown. Raises CoordError."""
        try:
            data, _ = await self._coord.get(self._path)
        except NoNode:
            return None
        return next((stored for stored in Stored if stored.value == data), None)

    async def put(self, stored: Stored) -> None:
        """Write the store's name. Raises BrokerError, CoordError."""
        if await self.get() is stored:
            return
        change = Change("", self._path, ((self._path, stored.value),))
        (code,) = await self._writes.write([change])
        if code is not ErrorCode.NONE:
            raise BrokerError(code, f"{self._path} cannot be written")
