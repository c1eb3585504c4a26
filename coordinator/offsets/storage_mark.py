"""The storage mark: a ZooKeeper node that names the offset store (ZooKeeper or the log) which has a
shard's offsets. If `offsets.storage` names a different store, the shard migrates the offsets when
it loads. Then it changes the node, so later loads do not migrate again."""

from __future__ import annotations

import enum

from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode, NoNode
from pybroker.ports import Coord


class Stored(enum.Enum):
    """The content of a shard's storage mark, the node that names the offset store of the shard."""

    ZOOKEEPER = b"zookeeper"
    LOG = b"kafka"


class StorageMark:
    """Reads and writes one shard's storage mark, the node that names the shard's offset store."""

    def __init__(self, coord: Coord, writes: FencedWrites, partition: int) -> None:
        self._coord = coord
        self._writes = writes
        self._path = paths.offsets_stored(partition)

    async def get(self) -> Stored | None:
        """Return the offset store that the shard's node names; None if the node does not exist, or
        if its content is unknown. Raises CoordError."""
        try:
            data, _ = await self._coord.get(self._path)
        except NoNode:
            return None
        return next((stored for stored in Stored if stored.value == data), None)

    async def put(self, stored: Stored) -> None:
        """Write into the shard's ZooKeeper node that the store `stored` has the shard's offsets. Do
        nothing if the node already names this store. Raises BrokerError, CoordError."""
        if await self.get() is stored:
            return
        change = Change("", self._path, ((self._path, stored.value),))
        (code,) = await self._writes.write([change])
        if code is not ErrorCode.NONE:
            raise BrokerError(
                code,
                f"the node {self._path}, which names the offset store of the shard, "
                "cannot be written to ZooKeeper",
            )
