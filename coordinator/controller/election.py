"""The election of the controller. A broker wins by one multi (KAFKA-6082), which creates the
ephemeral /controller and increases /controller_epoch. Each later write of the controller checks the
version of /controller_epoch. So ZooKeeper refuses the writes of a replaced controller."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ConnectionLoss, MultiFailed, NodeExists, NoNode, SessionExpired
from pybroker.ports import CheckOp, Clock, Coord, CoordOp, CreateOp, DeleteOp, SetOp, Watch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Won:
    """This broker is the controller, with controller epoch `epoch`. `epoch_version` is the version
    of the node /controller_epoch."""

    broker_id: int
    epoch: int
    epoch_version: int


@dataclass(frozen=True, slots=True)
class Lost:
    """This broker is not the controller. `controller_id` is the controller; None if /controller
    changed during the read."""

    controller_id: int | None


async def elect(coord: Coord, broker_id: int, clock: Clock, watch: Watch) -> Won | Lost:
    """Stand for election if there is no controller, and return the result. `watch` fires at the
    next change of /controller. Raises ConnectionLoss or SessionExpired when the outcome is unknown:
    call again."""
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
        log.info(
            "election unclear broker=%d epoch=%d reason=%r: this broker reads /controller again",
            broker_id,
            epoch + 1,
            error,
        )
        await coord.sync(paths.CONTROLLER)
        return await incumbent(coord, broker_id)
    return Won(broker_id, epoch + 1, version + 1)


async def incumbent(coord: Coord, broker_id: int) -> Won | Lost:
    """Return which broker is the controller now. Return `Won` only if the current ZooKeeper session
    owns /controller. If an earlier session of this broker owns it, return `Lost`."""
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
    """Remove the node /controller if this broker is still the controller. If ZooKeeper does not
    confirm the removal, the node can remain until this broker's session ends."""
    try:
        await coord.multi(
            [CheckOp(paths.CONTROLLER_EPOCH, won.epoch_version), DeleteOp(paths.CONTROLLER)]
        )
    except (MultiFailed, ConnectionLoss, SessionExpired) as error:
        log.info(
            "resignation not confirmed epoch=%d reason=%r: the end of the session removes %s",
            won.epoch,
            error,
            paths.CONTROLLER,
        )


async def _read_epoch(coord: Coord) -> tuple[int, int]:
    """Return (epoch, version) of /controller_epoch. A missing node is created with epoch 0."""
    try:
        data, stat = await coord.get(paths.CONTROLLER_EPOCH)
    except NoNode:
        try:
            await coord.create(paths.CONTROLLER_EPOCH, schemas.encode_number(0))
        except NodeExists:
            log.debug("controller epoch exists path=%s", paths.CONTROLLER_EPOCH)
        data, stat = await coord.get(paths.CONTROLLER_EPOCH)
    return schemas.decode_number(paths.CONTROLLER_EPOCH, data), stat.version
