"""Keeps committed offsets from ZooKeeper in memory, for reports of the consumer lag. Watches show
which nodes have changed, so a report reads only these nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.offsets.nodes import OffsetNodes, partition_numbers
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import decode_number
from pybroker.errors import NoNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord, Watch, WatchEvent

WATCHES_MAX: Final = 100_000
"""The maximum number of watched nodes of one store. Further nodes are read for each report."""


class _Group:
    """The known nodes of one group: path -> value, None while the node is being read. When a node
    changes, its watch removes the entry."""

    __slots__ = ("children", "is_changed", "offsets", "positions")

    def __init__(self) -> None:
        self.children: dict[str, list[str] | None] = {}
        self.offsets: dict[str, int | None] = {}
        self.positions: dict[TopicPartition, int] = {}
        """The committed offsets at the last read of the group."""
        self.is_changed = True
        """Whether a node may have changed since `positions` was read."""


class WatchedOffsets:
    """A cache of the groups' committed offsets, without metadata and times. `nodes` must use the
    session of `coord`. A new session empties the cache."""

    def __init__(self, coord: Coord, nodes: OffsetNodes, watches_max: int = WATCHES_MAX) -> None:
        self._coord = coord
        self._nodes = nodes
        self._watches_max = watches_max
        self._generation = 0
        """The generation of the session in which the known nodes were read."""
        self._groups: dict[str, _Group] = {}
        self._watched: set[str] = set()

    def clear(self) -> None:
        """Forget all groups."""
        self._groups.clear()
        self._watched.clear()

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]:
        """Return partition -> committed offset of the group. Two calls for one group must not
        overlap. Raises CoordError, and MalformedNode if a node is not a number."""
        known = self._groups.get(group_id)
        is_current = self._coord.generation == self._generation
        if known is not None and is_current and not known.is_changed:
            return known.positions
        return await self._nodes.in_one_session(lambda: self._read(group_id))

    async def _read(self, group_id: str) -> Mapping[TopicPartition, int]:
        if not group_id:  # Kafka allows the empty group id; a node cannot have an empty name
            return {}
        if self._coord.generation != self._generation:
            self.clear()
            self._generation = self._coord.generation
        group = self._groups.setdefault(group_id, _Group())
        group.is_changed = False  # a watch that fires during the read sets it again
        try:
            keys = await self._partitions(group_id, group)
            offsets = await bounded_gather(lambda key: self._offset(group_id, group, key), keys)
        except BaseException:
            group.is_changed = True
            raise
        found = zip(keys, offsets, strict=True)
        group.positions = {key: offset for key, offset in found if offset is not None}
        return group.positions

    async def _partitions(self, group_id: str, group: _Group) -> list[TopicPartition]:
        root = paths.group_offsets(group_id)
        topics = await self._children(group_id, group, root)
        names = await bounded_gather(
            lambda topic: self._children(group_id, group, f"{root}/{topic}"), topics
        )
        return [
            TopicPartition(paths.decode_name(topic), number)
            for topic, children in zip(topics, names, strict=True)
            for number in partition_numbers(children)
        ]

    async def _children(self, group_id: str, group: _Group, path: str) -> list[str]:
        known = group.children.get(path)
        if known is not None:
            return known
        watch = self._watch(group_id, group, group.children, path)
        try:
            names = await self._coord.children(path, watch)
        except NoNode:
            self._forget(group, group.children, path)  # ZooKeeper has set no watch
            return []
        if path in group.children:
            group.children[path] = names
        return names

    async def _offset(self, group_id: str, group: _Group, key: TopicPartition) -> int | None:
        path = paths.offset(group_id, key)
        known = group.offsets.get(path)
        if known is not None:
            return known
        watch = self._watch(group_id, group, group.offsets, path)
        try:
            offset = decode_number(path, (await self._coord.get(path, watch))[0])
        except NoNode:
            self._forget(group, group.offsets, path)
            return None
        if path in group.offsets:
            group.offsets[path] = offset
        return offset

    def _watch(
        self, group_id: str, group: _Group, nodes: dict[str, Any], path: str
    ) -> Watch | None:
        """Return the callback for a ZooKeeper watch on `path`. When the node changes, the callback
        removes the cached value of `path`. Return None if there are too many watches."""
        if len(self._watched) >= self._watches_max:
            group.is_changed = True
            return None

        def changed(event: WatchEvent) -> None:
            del event
            self._forget(group, nodes, path)
            # The group's topics have changed, or the group was deleted.
            if path == paths.group_offsets(group_id) and self._groups.get(group_id) is group:
                del self._groups[group_id]

        self._watched.add(path)
        nodes[path] = None
        return changed

    def _forget(self, group: _Group, nodes: dict[str, Any], path: str) -> None:
        group.is_changed = True
        self._watched.discard(path)
        nodes.pop(path, None)
