"""Reads and replaces the configurations under /config. A multi that replaces a configuration also
creates the notification for all brokers. The callers check the values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from pybroker.coordinator.zookeeper import paths, schemas, topic_nodes
from pybroker.coordinator.zookeeper.paths import ConfigEntity
from pybroker.errors import BadVersion, ConnectionLoss, CoordError, MultiFailed, NodeExists, NoNode
from pybroker.ports import Coord, CoordOp, CreateOp, SetOp

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 20
"""The maximum number of attempts of a change. Other clients may change the node between its read
and its write."""

Change = Callable[[dict[str, str]], Mapping[str, str]]
"""Function: the stored values -> the new values."""


async def read_config(coord: Coord, entity: ConfigEntity) -> dict[str, str]:
    """Return the values of an entity; empty if it has no node. Raises MalformedNode, CoordError."""
    return (await _read(coord, entity))[0]


async def change_config(
    coord: Coord,
    entity: ConfigEntity,
    change: Change,
    *,
    owner: str | None = None,
    replaces: bool = False,
) -> bool:
    """Replace the values of an entity by the result of `change`, and notify all brokers, in one
    multi. `change` is called again if another client changes the values meanwhile. Raises
    MalformedNode, CoordError, and the errors of `change`.

    `owner`: the topic, if the entity is a topic. Return False, and change nothing, if this topic
    does not exist. `replaces`: `change` gets an empty dict, so that malformed stored values raise
    no error.
    """
    path = paths.config(entity)
    note = CreateOp(
        f"{paths.CONFIG_CHANGE_PREFIX}",
        schemas.encode_config_change(paths.config_entity_path(entity)),
        sequence=True,
    )
    try:
        topic = None if owner is None else (owner, await topic_nodes.stored_id(coord, owner))
    except NoNode:
        return False
    for attempt in range(ATTEMPTS_MAX):
        current, version = await _read(coord, entity, tolerant=replaces)
        data = schemas.encode_config(change(current))
        write: CoordOp = CreateOp(path, data) if version is None else SetOp(path, data, version)
        try:
            await topic_nodes.multi(coord, topic, [write, note])
        except MultiFailed as error:
            if error.index < 0:
                return False
            if not isinstance(error.cause, BadVersion | NodeExists | NoNode):
                raise error.cause from error
            log.info("config changed by another client path=%s attempt=%d", path, attempt + 1)
        except ConnectionLoss:
            await coord.sync(path)
            if await _holds(coord, path, data, version):
                return True
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return True
    raise CoordError(
        f"the node {path} could not be written in {ATTEMPTS_MAX} attempts, because other clients"
        " kept changing it; try again"
    )


async def _read(
    coord: Coord, entity: ConfigEntity, *, tolerant: bool = False
) -> tuple[dict[str, str], int | None]:
    """Return (the entity's values, version of its node). The version is None without a node. With
    `tolerant`, do not decode the node: return {} as the values, even if the node is malformed."""
    path = paths.config(entity)
    try:
        data, stat = await coord.get(path)
    except NoNode:
        return {}, None
    return ({} if tolerant else schemas.decode_config(path, data)), stat.version


async def _holds(coord: Coord, path: str, data: bytes, old_version: int | None) -> bool:
    """Return whether a write whose reply was lost has been applied. `old_version`: the node's
    version before the write; None without a node."""
    try:
        found, stat = await coord.get(path)
    except NoNode:
        return False
    return found == data and stat.version != old_version
