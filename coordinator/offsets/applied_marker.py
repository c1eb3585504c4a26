"""The applied marker of a shard: a ZooKeeper node with the log offset of a commit marker.

ZooKeeper has the offsets of every transaction with a commit marker up to this log offset. A new
coordinator writes only the offsets of later transactions, because later commits may have replaced
the earlier ones.
"""

from __future__ import annotations

from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import decode_number, encode_number
from pybroker.errors import ErrorCode, NoNode
from pybroker.model import NO_OFFSET
from pybroker.ports import Coord


class AppliedMarker:
    """Reads and writes one shard's applied marker."""

    def __init__(self, coord: Coord, writes: FencedWrites, partition: int) -> None:
        self._coord = coord
        self._writes = writes
        self._path = paths.applied_marker(partition)

    async def get(self) -> int | None:
        """Return the marker's log offset; None if no marker has been applied yet. Raises
        CoordError, MalformedNode."""
        await self._coord.sync(self._path)
        try:
            data, _ = await self._coord.get(self._path)
        except NoNode:
            return None
        return decode_number(self._path, data)

    async def put(self, offset: int) -> ErrorCode:
        """Store the marker's log offset. Return NONE, or the code of `FencedWrites.write`."""
        change = Change("", self._path, ((self._path, encode_number(offset)),))
        (code,) = await self._writes.write([change])
        return code

    @staticmethod
    def after_loading(stored: int | None, last_marker: int, log_end: int) -> int | None:
        """Return the offset to store when all markers up to `last_marker` (-1: none) have been
        applied; None if the node already has it. A stored offset at or above the log end is
        replaced: an unclean election has removed its records, and future markers below it would
        count as applied."""
        if stored is None:
            return None if last_marker == NO_OFFSET else last_marker
        wanted = last_marker if stored >= log_end else max(stored, last_marker)
        return None if wanted == stored else wanted
