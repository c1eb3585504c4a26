"""The controller's fenced writes: each is in a multi with a check of /controller_epoch. So
ZooKeeper refuses all writes of a deposed controller. Several writes share a multi."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.multi_batcher import MultiBatcher
from pybroker.errors import (
    ConnectionLoss,
    CoordError,
    MultiFailed,
    PybrokerError,
    SessionExpired,
)
from pybroker.ports import CheckOp, Coord, CoordOp, OpResult

OPERATIONS_PER_MULTI_MAX: Final = 199
"""The maximum number of operations of one multi, not counting the check of /controller_epoch."""
RETRY_PAUSE_S: Final = 0.1
_AT_ONCE_MAX: Final = 2 * OPERATIONS_PER_MULTI_MAX
"""The maximum number of writes under way: while ZooKeeper handles one multi, the writes of the next
multi wait."""


class ControllerMoved(PybrokerError):
    """Another broker has raised the controller epoch, so this broker is no longer the
    controller."""


@dataclass(frozen=True, slots=True)
class Write:
    """The operations of one write: ZooKeeper applies all of them or none."""

    ops: tuple[CoordOp, ...]


WriteOutcome = list[OpResult] | CoordError
"""The results of the operations, or an error. After most errors no operation was applied. After
ConnectionLoss it is unknown whether they were applied. After NodeExists, BadVersion and NoNode the
caller has to read the nodes: a first attempt may have been applied and its reply lost."""


class FencedWriter:
    """Sends writes to ZooKeeper. ZooKeeper refuses each write if the node /controller_epoch no
    longer has the version `epoch_version`."""

    def __init__(self, coord: Coord, epoch_version: int) -> None:
        self._coord = coord
        self._check = CheckOp(paths.CONTROLLER_EPOCH, epoch_version)
        self._batcher = MultiBatcher(self, at_once=1, operations_max=OPERATIONS_PER_MULTI_MAX)

    async def write_all(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """Send the writes and return their outcomes, in order. Raises ControllerMoved,
        SessionExpired; after these errors, any of the writes may have been applied."""
        return await bounded_gather(self._write, writes, _AT_ONCE_MAX)

    async def _write(self, write: Write) -> WriteOutcome:
        try:
            return await self._batcher.multi(write.ops)
        except SessionExpired:
            raise
        except MultiFailed as error:
            return error.cause
        except CoordError as error:
            return error

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """Send `ops` in one multi with a check of /controller_epoch. If the reply is lost, send the
        multi once more. Raises ControllerMoved, MultiFailed (`index` is a position in `ops`) or
        another CoordError."""
        try:
            return await self._attempt(ops)
        except ConnectionLoss:
            await asyncio.sleep(RETRY_PAUSE_S)
            return await self._attempt(ops)

    async def _attempt(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        try:
            return (await self._coord.multi([self._check, *ops]))[1:]
        except MultiFailed as error:
            if error.index == 0:
                raise ControllerMoved(
                    "another broker has become the controller: the node /controller_epoch has"
                    f" changed ({error.cause!r})"
                ) from error
            raise MultiFailed(error.index - 1, error.cause) from error
