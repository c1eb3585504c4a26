"""Writes of a controller: every one is in a multi with a check of /controller_epoch, so a deposed
controller changes nothing (all or nothing, decided by the service).

Many writes share a multi, since a round trip costs far more than an operation. Whether a write is
right is none of this module's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.limits import operation_bytes
from pybroker.errors import (
    ConnectionLoss,
    CoordError,
    MultiFailed,
    PybrokerError,
    SessionExpired,
)
from pybroker.ports import CheckOp, Coord, CoordOp, OpResult

logger = logging.getLogger(__name__)

OPERATIONS_PER_MULTI_MAX: Final = 200
BYTES_PER_MULTI_MAX: Final = 256 * 1024
RETRY_PAUSE_S: Final = 0.1


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

    async def write_all(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """The outcome of each write, in order. One that is refused does not stop the others.

        Raises ControllerMoved or SessionExpired; writes whose outcome is unknown then may or may
        not have been applied.
        """
        outcomes: list[WriteOutcome] = []
        for batch in cut(writes):
            outcomes.extend(await self._write_batch(batch))
        return outcomes

    async def _write_batch(self, batch: Sequence[Write]) -> list[WriteOutcome]:
        ops = [op for write in batch for op in write.ops]
        try:
            try:
                results = await self._multi(ops)
            except ConnectionLoss:
                await asyncio.sleep(RETRY_PAUSE_S)
                results = await self._multi(ops)
        except ConnectionLoss as error:
            return [error] * len(batch)
        except MultiFailed as error:
            if len(batch) == 1:
                return [error.cause]
            logger.info("multi_redone_singly writes=%d reason=%r", len(batch), error)
            return [await self._write_one(write) for write in batch]
        outcomes: list[WriteOutcome] = []
        position = 0
        for write in batch:
            outcomes.append(results[position : position + len(write.ops)])
            position += len(write.ops)
        return outcomes

    async def _write_one(self, write: Write) -> WriteOutcome:
        try:
            return await self._multi(write.ops)
        except MultiFailed as error:
            return error.cause
        except (ControllerMoved, SessionExpired):
            raise
        except CoordError as error:
            return error

    async def _multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """One fenced multi; the results of `ops` only, and a MultiFailed counts them from 0."""
        try:
            return (await self._coord.multi([self._check, *ops]))[1:]
        except MultiFailed as error:
            if error.index == 0:
                raise ControllerMoved(f"the controller epoch has changed: {error.cause}") from error
            raise MultiFailed(error.index - 1, error.cause) from error


def cut(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """The writes in order, in runs that fit into one multi; a write is never divided."""
    batch: list[Write] = []
    operations = 1
    size = 0
    for write in writes:
        write_size = sum(map(operation_bytes, write.ops))
        too_many = operations + len(write.ops) > OPERATIONS_PER_MULTI_MAX
        if batch and (too_many or size + write_size > BYTES_PER_MULTI_MAX):
            yield batch
            batch, operations, size = [], 1, 0
        batch.append(write)
        operations += len(write.ops)
        size += write_size
    if batch:
        yield batch
