"""The ZooKeeper nodes of a group, below `/consumers/<group>`: the search for consumers of Kafka
0.8, and the removal of nodes."""

from __future__ import annotations

import logging
from collections.abc import Collection

from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import is_coordinated_member
from pybroker.errors import ErrorCode, NoNode
from pybroker.ports import Coord

log = logging.getLogger(__name__)


async def classic_members(coord: Coord, group_id: str) -> list[str]:
    """Return the names of the group's classic consumers (Kafka 0.8): the nodes under
    /consumers/GROUP/ids that no coordinator wrote. Raises CoordError."""
    root = paths.group_members(group_id)
    names = await children_of(coord, root)

    async def is_classic(name: str) -> bool:
        path = f"{root}/{name}"
        try:
            data, _ = await coord.get(path)
        except NoNode:
            return False
        return not is_coordinated_member(path, data)

    found = await bounded_gather(is_classic, names)
    return [name for name, classic in zip(names, found, strict=True) if classic]


async def remove_group_nodes(coord: Coord, writes: FencedWrites, group_id: str) -> ErrorCode:
    """Remove all nodes of the group. Return NONE, or the error code of one node that could not be
    removed. Raises CoordError."""
    if not group_id:
        return ErrorCode.NONE
    codes: list[ErrorCode] = []
    for root in (paths.group(group_id), paths.group_details(group_id)):
        tree = await _tree(coord, root)
        if tree:
            codes += await writes.write([_gone(group_id, path) for path in reversed(tree)])
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


async def remove_empty_topics(
    coord: Coord, writes: FencedWrites, group_id: str, topics: Collection[str]
) -> None:
    """Remove the group's nodes for these topics. If no topic node of the group is left, also remove
    the group's own nodes. A node with child nodes remains. Raises CoordError."""
    candidates = [paths.topic_offsets(group_id, name) for name in sorted(topics)]
    candidates += [paths.topic_details(group_id, name) for name in sorted(topics)]
    empty = await _empty_of(coord, candidates)
    await writes.write([_gone(group_id, path) for path in empty])
    if not await children_of(coord, paths.group_offsets(group_id)):
        below = [f"{paths.group(group_id)}/{name}" for name in ("ids", "owners", "offsets")]
        for level in (below, [paths.group(group_id), paths.group_details(group_id)]):
            empty = await _empty_of(coord, level)
            await writes.write([_gone(group_id, path) for path in empty])


async def _empty_of(coord: Coord, candidates: list[str]) -> list[str]:
    stats = await bounded_gather(coord.exists, candidates)
    return [
        path
        for path, stat in zip(candidates, stats, strict=True)
        if stat is not None and not stat.num_children
    ]


async def _tree(coord: Coord, root: str) -> list[str]:
    """Return the paths of `root` and of all nodes below it, parents first."""
    if await coord.exists(root) is None:
        return []
    found, level = [root], [root]
    while level:
        names = await bounded_gather(lambda path: children_of(coord, path), level)
        pairs = zip(level, names, strict=True)
        level = [f"{path}/{name}" for path, children in pairs for name in children]
        found += level
    return found


async def children_of(coord: Coord, path: str) -> list[str]:
    """Return the names of the node's children; empty if the node does not exist. Raises
    CoordError."""
    try:
        return await coord.children(path)
    except NoNode:
        return []


def _gone(group_id: str, path: str) -> Change:
    return Change(group_id, path, ((path, None),))
