"""Nodes by which Kafka's older tools send a request to the controller. A tool refuses to start
while its node exists."""

from __future__ import annotations

import logging

from pybroker.coordinator.controller.events import Event
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.controller.writes import Write
from pybroker.errors import BadVersion, CoordError, NoNode, NotEmpty
from pybroker.ports import DeleteOp, NodeStat, Watch

log = logging.getLogger(__name__)


async def read_request(
    services: ControllerServices, path: str, watch: Watch
) -> tuple[bytes, NodeStat] | None:
    """Return (content, stat) of the node; None if it does not exist. `watch` fires at the next
    change of the node. Raises CoordError."""
    if await services.coord.exists(path, watch) is None:
        return None
    try:
        return await services.coord.get(path)
    except NoNode:
        return None


async def remove_request(
    services: ControllerServices, path: str, stat: NodeStat, retry_event: Event
) -> None:
    """Remove the request node at `path`, unless the node has changed since `stat`. If the removal
    fails, the controller handles `retry_event` after a pause. There is no retry if the node has
    children. Raises ControllerMoved. Raises CoordError if the session has expired."""
    (outcome,) = await services.writer.write_all([Write((DeleteOp(path, stat.version),))])
    if isinstance(outcome, CoordError) and not isinstance(outcome, NoNode | BadVersion):
        log.warning("request not removed path=%s reason=%r", path, outcome)
        if not isinstance(outcome, NotEmpty):  # only the creator of the children removes them
            services.retries.repeat_if([outcome], retry_event)
