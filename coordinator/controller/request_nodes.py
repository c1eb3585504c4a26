"""Nodes through which Kafka's older tools send a request to the controller. A tool refuses to start
while its node exists, so the controller removes the node when it has handled the request.
"""

from __future__ import annotations

import logging

from pybroker.coordinator.controller.events import Event
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.controller.writes import Write
from pybroker.errors import BadVersion, CoordError, NoNode, NotEmpty
from pybroker.ports import DeleteOp, NodeStat, Watch

logger = logging.getLogger(__name__)


async def read_request(
    services: ControllerServices, path: str, watch: Watch
) -> tuple[bytes, NodeStat] | None:
    """The content of the node, with its version; None if there is no such node. `watch` hears of
    the next one. Raises CoordError."""
    if await services.coord.exists(path, watch) is None:
        return None
    try:
        return await services.coord.get(path)
    except NoNode:
        return None


async def remove_request(
    services: ControllerServices, path: str, stat: NodeStat, again: Event
) -> None:
    """Remove the node, unless it asks for something else by now. `again` is the event that looks at
    it once more after a failure. Raises ControllerMoved, or CoordError."""
    (outcome,) = await services.writer.write_all([Write((DeleteOp(path, stat.version),))])
    if isinstance(outcome, CoordError) and not isinstance(outcome, NoNode | BadVersion):
        logger.warning("request_not_removed path=%s reason=%r", path, outcome)
        if not isinstance(outcome, NotEmpty):  # a node with children is left to their owner
            services.retries.repeat_if([outcome], again)
