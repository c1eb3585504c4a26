"""Writes of a controller: every one is in a multi with a check of /controller_epoch, so a deposed
controller changes nothing (all or nothing, decided by the service).

Many writes share a multi, since a round trip costs far more than an operation. Whether a write is
right is none of this module's business.
"""

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
"""Beside the check."""
RETRY_PAUSE_S: Final = 0.1
_AT_ONCE_MAX: Final = 2 * OPERATIONS_PER_MULTI_MAX
"""So that the next multi is full when one has been answered."""


class ControllerMoved(PybrokerError):
    """The controller epoch is not ours any more: somebody else is, or was, the controller."""


@dataclass(frozen=True, slots=True)
class Write:
    """Operations that belong together: all are applied or none."""

    ops: tuple[CoordOp, ...]


WriteOutcome = list[OpResult] | CoordError
"""The results of the operations, or why none was applied. ConnectionLoss: nobody knows. After a
retry, NodeExists, BadVersion or NoNode may be the trace of our own first attempt: read back."""


class FencedWriter:
    """Writes for as long as /controller_epoch has `epoch_version`."""

    def __init__(self, coord: Coord, epoch_version: int) -> None:
        self._coord = coord
        self._check = CheckOp(paths.CONTROLLER_EPOCH, epoch_version)
        self._batcher = MultiBatcher(self, at_once=1, operations_max=OPERATIONS_PER_MULTI_MAX)

    async def write_all(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """The outcome of each write, in order. One that is refused does not stop the others.

        Raises ControllerMoved or SessionExpired; writes whose outcome is unknown then may or may
        not have been applied.
        """
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
        """One fenced multi, tried once more after a lost reply; the results of `ops` only, and a
        MultiFailed counts them from 0."""
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
                raise ControllerMoved(f"the controller epoch has changed: {error.cause}") from error
            raise MultiFailed(error.index - 1, error.cause) from error
