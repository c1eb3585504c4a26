"""The applied marker of a shard: a ZooKeeper node with a log offset. If the commit marker of a
transaction is at or before this log offset, the transaction's offsets are in ZooKeeper.

A new coordinator must not write these offsets again, because newer commits may have replaced them.
"""

from __future__ import annotations

from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import decode_number, encode_number
from pybroker.errors import ErrorCode, NoNode
from pybroker.model import NO_OFFSET
from pybroker.ports import Coord


class AppliedMarker:
    """Reads and writes the applied marker of one shard, the log offset up to which the shard's
    transactional offset commits are in ZooKeeper."""

    def __init__(self, coord: Coord, writes: FencedWrites, partition: int) -> None:
        self._coord = coord
        self._writes = writes
        self._path = paths.applied_marker(partition)

    async def get(self) -> int | None:
        """Return the log offset in the applied marker's ZooKeeper node. Return None if the node
        does not exist. Raises CoordError, MalformedNode."""
        await self._coord.sync(self._path)
        try:
            data, _ = await self._coord.get(self._path)
        except NoNode:
            return None
        return decode_number(self._path, data)

    async def put(self, offset: int) -> ErrorCode:
        """Store `offset`, the log offset of a transaction's commit marker. ZooKeeper must already
        have the committed offsets of this transaction and of all earlier transactions. Return NONE,
        or the code of `FencedWrites.write`."""
        change = Change("", self._path, ((self._path, encode_number(offset)),))
        (code,) = await self._writes.write([change])
        return code

    @staticmethod
    def after_loading(stored: int | None, last_marker: int, log_end: int) -> int | None:
        """Return the log offset to write to the applied marker's ZooKeeper node (see the module)
        after a load; None if the node is right. `stored`: the log offset in the node (None: no
        node). `last_marker`: the log offset of the last commit marker whose transaction's offsets
        are in ZooKeeper (-1: none).

        After an unclean election the log may end at or below `stored`. The node must then get the
        lower `last_marker`. Otherwise the offsets of a later transaction would wrongly count as
        stored in ZooKeeper, if its commit marker is appended at or below `stored`.
        """
        if stored is None:
            return None if last_marker == NO_OFFSET else last_marker
        wanted = last_marker if stored >= log_end else max(stored, last_marker)
        return None if wanted == stored else wanted
