"""The node /admin/reassign_partitions of Kafka's older tools. The controller refuses each request,
because pybroker does not move replicas."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pybroker.config.declaration import shortened
from pybroker.coordinator.controller.events import ReassignmentRequested
from pybroker.coordinator.controller.request_nodes import read_request, remove_request
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import MalformedNode
from pybroker.model import TopicPartition
from pybroker.ports import Watch

log = logging.getLogger(__name__)

_NAMED_MAX: Final = 20
"""The maximum number of partitions that are named in the log: the node may name tens of
thousands."""
_HOW_TO_GO_ON: Final = (
    "this version does not reassign partitions: they keep their replicas, and the controller"
    " removes the request. To place the records on other brokers, create a topic with"
    " --replica-assignment and copy them"
)


class Reassignments:
    """Refuses and removes the requests in the node /admin/reassign_partitions."""

    def __init__(self, services: ControllerServices, watch: Watch) -> None:
        self._services = services
        self._watch = watch

    async def look(self) -> None:
        """Read the node /admin/reassign_partitions. If it exists, refuse its reassignments: log a
        warning and remove the node, because pybroker does not move replicas. Raises
        ControllerMoved, CoordError."""
        path = paths.REASSIGNMENTS
        found = await read_request(self._services, path, self._watch)
        if found is None:
            return
        data, stat = found
        try:
            self._refuse(schemas.decode_reassignment(path, data))
        except MalformedNode as error:
            log.warning("reassignment refused path=%s reason=%s", path, error)
        await remove_request(self._services, path, stat, ReassignmentRequested())

    def _refuse(self, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        """Log a warning that the reassignment is refused. The warning does not name partitions that
        already have the replicas in `wanted`."""
        partitions = self._services.context.partitions
        refused = [
            f"{key}:[{shortened(','.join(map(str, replicas)))}]"
            for key, replicas in wanted.items()
            if key not in partitions or partitions[key].replicas != replicas
        ]
        if not refused:
            return
        more = len(refused) - _NAMED_MAX
        named = [*refused[:_NAMED_MAX], *([f"and {more} more"] if more > 0 else [])]
        log.warning(
            "reassignment refused path=%s partitions=%s reason=%s",
            paths.REASSIGNMENTS,
            " ".join(named),
            _HOW_TO_GO_ON,
        )
