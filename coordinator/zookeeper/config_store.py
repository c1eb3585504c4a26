"""The configurations that lie under /config: read, and replaced together with the notification by
which all brokers hear of it.

What the values mean, and which may be written, is not decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from pybroker.coordinator.zookeeper import paths, schemas, topic_nodes
from pybroker.coordinator.zookeeper.paths import ConfigEntity
from pybroker.errors import BadVersion, ConnectionLoss, CoordError, MultiFailed, NodeExists, NoNode
from pybroker.ports import Coord, CoordOp, CreateOp, SetOp

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 20
"""Others may write meanwhile, many one after the other."""

Change = Callable[[dict[str, str]], Mapping[str, str]]
"""From the values that are there to those that shall be there."""


async def read_config(coord: Coord, entity: ConfigEntity) -> dict[str, str]:
    """The values of an entity; none if it has no node. Raises MalformedNode, CoordError."""
    return (await _read(coord, entity))[0]


async def change_config(
    coord: Coord,
    entity: ConfigEntity,
    change: Change,
    *,
    owner: str | None = None,
    replaces: bool = False,
) -> bool:
    """Replace the values of an entity by `change` of them and notify all brokers, both or neither.

    Somebody else's change in between is not overwritten: `change` is asked again with what is there
    then. False if `owner`, the topic to which the values belong, does not exist, or is deleted
    meanwhile: nothing is stored for a recreated topic. With `replaces`, what is there may be
    damaged, since `change` does not depend on it. Raises MalformedNode, CoordError, and what
    `change` raises.
    """
    path = paths.config(entity)
    note = CreateOp(
        f"{paths.CONFIG_CHANGE_PREFIX}",
        schemas.encode_config_change(paths.config_entity_path(entity)),
        sequence=True,
    )
    try:
        topics = [] if owner is None else [(owner, await topic_nodes.stored_id(coord, owner))]
    except NoNode:
        return False
    for attempt in range(ATTEMPTS_MAX):
        current, version = await _read(coord, entity, tolerant=replaces)
        data = schemas.encode_config(change(current))
        write: CoordOp = CreateOp(path, data) if version is None else SetOp(path, data, version)
        try:
            await topic_nodes.multi(coord, topics, [write, note])
        except MultiFailed as error:
            if error.index < 0:
                return False
            if not isinstance(error.cause, BadVersion | NodeExists | NoNode):
                raise error.cause from error
            logger.info("config_changed_meanwhile path=%s attempt=%d", path, attempt + 1)
        except ConnectionLoss:
            await coord.sync(path)
            if await _holds(coord, path, data, version):
                return True
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return True
    raise CoordError(f"the node {path} keeps changing")


async def _read(
    coord: Coord, entity: ConfigEntity, *, tolerant: bool = False
) -> tuple[dict[str, str], int | None]:
    """The values and the version of the node; None if there is none."""
    path = paths.config(entity)
    try:
        data, stat = await coord.get(path)
    except NoNode:
        return {}, None
    return ({} if tolerant else schemas.decode_config(path, data)), stat.version


async def _holds(coord: Coord, path: str, data: bytes, earlier: int | None) -> bool:
    """Whether the write whose reply was lost has been carried out."""
    try:
        found, stat = await coord.get(path)
    except NoNode:
        return False
    return found == data and stat.version != earlier
