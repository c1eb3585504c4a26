"""Who is the controller: standing for election, proving that one has won, resigning.

Winning is one multi: the ephemeral /controller is created and /controller_epoch goes up by one at
the version that was read (KAFKA-6082). So while a /controller node exists, nobody else can have
raised the epoch, and the version of /controller_epoch fences every write of its owner.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ConnectionLoss, MultiFailed, NodeExists, NoNode, SessionExpired
from pybroker.ports import CheckOp, Clock, Coord, CoordOp, CreateOp, DeleteOp, SetOp, Watch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Won:
    """We are the controller of `epoch`; `epoch_version` is the version of /controller_epoch."""

    broker_id: int
    epoch: int
    epoch_version: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else is the controller. None: somebody was just now, and is gone again."""

    controller_id: int | None


async def elect(coord: Coord, broker_id: int, clock: Clock, watch: Watch) -> Won | Lost:
    """Look who is the controller, and stand for election if nobody is.

    `watch` fires at the next change of /controller after this call began. Raises ConnectionLoss or
    SessionExpired when the outcome cannot be known now: then call again.
    """
    await coord.sync(paths.CONTROLLER)
    if await coord.exists(paths.CONTROLLER, watch) is not None:
        return await incumbent(coord, broker_id)
    epoch, version = await _read_epoch(coord)
    candidacy: list[CoordOp] = [
        CreateOp(
            paths.CONTROLLER,
            schemas.encode_controller(broker_id, clock.wall_ms()),
            ephemeral=True,
        ),
        SetOp(paths.CONTROLLER_EPOCH, schemas.encode_number(epoch + 1), version),
    ]
    try:
        await coord.multi(candidacy)
    except (MultiFailed, ConnectionLoss) as error:
        logger.info("election_unclear broker=%d epoch=%d reason=%r", broker_id, epoch + 1, error)
        await coord.sync(paths.CONTROLLER)
        return await incumbent(coord, broker_id)
    return Won(broker_id, epoch + 1, version + 1)


async def incumbent(coord: Coord, broker_id: int) -> Won | Lost:
    """Who is the controller now. `Won` only if the node is ours by the current session: an
    ephemeral of an earlier life with our id is about to vanish and proves nothing.

    The epoch is read between two looks at the same node, so it is the one of that node's owner.
    """
    try:
        data, stat = await coord.get(paths.CONTROLLER)
        controller_id = schemas.decode_controller(paths.CONTROLLER, data)
        if controller_id != broker_id or stat.ephemeral_owner != coord.session_id:
            return Lost(controller_id)
        epoch_data, epoch_stat = await coord.get(paths.CONTROLLER_EPOCH)
        _, stat_again = await coord.get(paths.CONTROLLER)
    except NoNode:
        return Lost(None)
    if stat_again.czxid != stat.czxid:
        return Lost(None)
    epoch = schemas.decode_number(paths.CONTROLLER_EPOCH, epoch_data)
    return Won(broker_id, epoch, epoch_stat.version)


async def resign(coord: Coord, won: Won) -> None:
    """Give the office up; the next controller's node is never touched. If the connection is gone,
    the end of the session does the same."""
    try:
        await coord.multi(
            [CheckOp(paths.CONTROLLER_EPOCH, won.epoch_version), DeleteOp(paths.CONTROLLER)]
        )
    except (MultiFailed, ConnectionLoss, SessionExpired) as error:
        logger.info("resignation_not_confirmed epoch=%d reason=%r", won.epoch, error)


async def _read_epoch(coord: Coord) -> tuple[int, int]:
    """(epoch, version) of /controller_epoch, which is created with 0 if it is missing."""
    try:
        data, stat = await coord.get(paths.CONTROLLER_EPOCH)
    except NoNode:
        try:
            await coord.create(paths.CONTROLLER_EPOCH, schemas.encode_number(0))
        except NodeExists:
            logger.debug("controller_epoch was created by another broker")
        data, stat = await coord.get(paths.CONTROLLER_EPOCH)
    return schemas.decode_number(paths.CONTROLLER_EPOCH, data), stat.version
