"""The storage mark of a shard: a ZooKeeper node that says whether the shard's offsets are stored in
ZooKeeper or in the log. If the option `offsets.storage` contradicts the node, the loading shard
migrates the offsets and then changes the node."""

from __future__ import annotations

import enum

from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode, NoNode
from pybroker.ports import Coord


class Stored(enum.Enum):
    """The store of a shard's offsets. Each value is the content of the ZooKeeper node that names
    the store."""

    ZOOKEEPER = b"zookeeper"
    LOG = b"kafka"


class StorageMark:
    """Reads and writes the storage mark of one shard: the ZooKeeper node that says whether the
    shard's offsets are in ZooKeeper or in the log."""

    def __init__(self, coord: Coord, writes: FencedWrites, partition: int) -> None:
        self._coord = coord
        self._writes = writes
        self._path = paths.offsets_stored(partition)

    async def get(self) -> Stored | None:
        """Return the offset store that the shard's node in ZooKeeper names. Return None if the node
        is missing, or if it names no known store. Raises CoordError."""
        try:
            data, _ = await self._coord.get(self._path)
        except NoNode:
            return None
        return next((stored for stored in Stored if stored.value == data), None)

    async def put(self, stored: Stored) -> None:
        """Write the name of the offset store `stored` to the shard's node, unless the node has it
        already. Raises BrokerError, CoordError."""
        if await self.get() is stored:
            return
        change = Change("", self._path, ((self._path, stored.value),))
        (code,) = await self._writes.write([change])
        if code is not ErrorCode.NONE:
            raise BrokerError(
                code,
                f"the ZooKeeper node {self._path}, which names the store of the committed offsets"
                " (ZooKeeper or the log), cannot be written",
            )
