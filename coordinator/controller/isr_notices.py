"""ISR changes that leaders report under /isr_change_notification. The leader has already written
the partition's state; the controller reads it and sends the new metadata to all brokers."""

from __future__ import annotations

import logging

from pybroker.coordinator.controller.events import IsrChanged
from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.controller.suspects import Suspects
from pybroker.coordinator.controller.writes import Write
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import CoordError, MalformedNode, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import DeleteOp, Watch

log = logging.getLogger(__name__)


class IsrNotices:
    """Handles ISR change notices in one controller's term."""

    def __init__(self, services: ControllerServices, watch: Watch, suspects: Suspects) -> None:
        self._services = services
        self._suspects = suspects
        self._watch = watch

    async def find(self) -> list[str]:
        """Return the paths of the ISR change notices. Raises CoordError."""
        try:
            names = await self._services.coord.children(paths.ISR_CHANGES, self._watch)
        except NoNode:
            return []
        return [f"{paths.ISR_CHANGES}/{name}" for name in names]

    async def take(self) -> None:
        """Read the states of the partitions that the notices name, and then remove the notices.
        Raises ControllerMoved, CoordError. If the states cannot be read, the notices remain."""
        nodes = await self.find()
        if not nodes:
            return
        named = await read_each(self._read, nodes)
        partitions = self._services.context.partitions
        keys = sorted({key for keys in named.values() for key in keys if key in partitions})
        await self._services.machine.refresh(keys)
        await self._suspects.look(keys)
        log.debug("isr notices nodes=%d partitions=%d", len(nodes), len(keys))
        await self.remove(nodes)

    async def remove(self, nodes: list[str]) -> None:
        """Remove the ISR change notices at the paths `nodes`. If a removal fails, the controller
        repeats the event IsrChanged after a pause. The repeated event removes the remaining
        notices. Raises ControllerMoved, SessionExpired."""
        outcomes = await self._services.writer.write_all(
            [Write((DeleteOp(node),)) for node in nodes]
        )
        failed = [
            outcome
            for outcome in outcomes
            if isinstance(outcome, CoordError) and not isinstance(outcome, NoNode)
        ]
        self._services.retries.repeat_if(failed, IsrChanged())

    async def _read(self, node: str) -> list[TopicPartition] | None:
        try:
            return schemas.decode_partitions(node, (await self._services.coord.get(node))[0])
        except NoNode:
            return None
        except MalformedNode as error:
            log.error("isr notice ignored reason=%s", error)
            return None
