"""Nodes of a topic are changed on the condition that they are still those that were read.

A node's version does not say that: the nodes of the next topic of a name have the versions of those
before. So the removals of topics are counted, by the version of a node that is set in the multi
which removes a topic's. Who writes reads the count first, and checks it in the multi: what was
meant for a topic that is gone is refused, also when it arrives late, after its reply was given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import BadVersion, MultiFailed, NoNode
from pybroker.ports import CheckOp, Coord, CoordOp, CreateOp, NodeStat, OpResult, SetOp

_ATTEMPTS_MAX: Final = 100
"""Other topics may be removed meanwhile, many one after the other."""

_ALWAYS: Final = CheckOp("/", -1)
"""Where nobody counts: a tool may be used on the nodes of Apache Kafka."""


@dataclass(frozen=True, slots=True)
class Found:
    """A node as it was read, and the check that no topic was removed since."""

    path: str
    data: bytes
    stat: NodeStat
    none_removed: CheckOp


async def none_removed_since_now(coord: Coord) -> CheckOp:
    """To be asked for before the nodes are read. Raises CoordError."""
    stat = await coord.exists(paths.REMOVALS)
    return _ALWAYS if stat is None else CheckOp(paths.REMOVALS, stat.version)


async def removal(coord: Coord) -> SetOp:
    """What counts the removal of a topic, in the same multi. Raises CoordError."""
    if await coord.exists(paths.REMOVALS) is None:
        await ensure(coord, paths.REMOVALS)
    return SetOp(paths.REMOVALS, b"")


async def find(coord: Coord, path: str, none_removed: CheckOp | None = None) -> Found:
    """Read a node that is to be replaced; `none_removed` where something was read before it.
    Raises NoNode, CoordError."""
    check = none_removed or await none_removed_since_now(coord)
    data, stat = await coord.get(path)
    return Found(path, data, stat, check)


async def create(coord: Coord, path: str, data: bytes, none_removed: CheckOp) -> None:
    """Make a node of the topic that was read since `none_removed`, and its parent where that is
    missing. Raises BadVersion: begin again; NodeExists, or another CoordError."""
    await ensure(coord, paths.parent(path))
    try:
        await coord.multi([none_removed, CreateOp(path, data)])
    except MultiFailed as error:
        raise error.cause from error


async def replace(coord: Coord, found: Found, data: bytes, *others: CoordOp) -> Sequence[OpResult]:
    """Set the node's data if it is the one that was found, unchanged; with it `others`, all or
    nothing. The results in this order.

    Raises BadVersion (find it again), NoNode, or another CoordError; what an operation of `others`
    was refused for, too. After ConnectionLoss it may be stored, for this topic only.
    """
    none_removed = found.none_removed
    for _ in range(_ATTEMPTS_MAX):
        write = SetOp(found.path, data, found.stat.version)
        try:
            return (await coord.multi([none_removed, write, *others]))[1:]
        except MultiFailed as error:
            if error.index > 0:
                raise error.cause from error
        none_removed = await none_removed_since_now(coord)
        stat = await coord.exists(found.path)
        if stat is None:
            raise NoNode(found.path)
        if (stat.czxid, stat.version) != (found.stat.czxid, found.stat.version):
            break
    raise BadVersion(f"{found.path} is not what was read")
