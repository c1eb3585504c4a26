"""Producer ids, unique in the cluster. Each broker takes blocks of ids from
/latest_producer_id_block by compare-and-set (KIP-98)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pybroker.background import cancel_and_wait
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import ProducerIdBlock
from pybroker.errors import (
    BadVersion,
    BrokerError,
    ConnectionLoss,
    CoordError,
    ErrorCode,
    MalformedNode,
    NodeExists,
    NoNode,
)
from pybroker.ports import Coord

log = logging.getLogger(__name__)

BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1
RESERVE_BELOW: Final = BLOCK_SIZE // 10
"""The broker takes the next block when it has fewer unused ids than this."""
ATTEMPTS_MAX: Final = 10
PAUSE_S: Final = 0.05


class ProducerIds:
    """Hands out the producer ids of one broker. Owns at most one task, which `close` ends."""

    def __init__(self, coord: Coord, broker_id: int) -> None:
        self._coord = coord
        self._broker_id = broker_id
        self._next = 0
        self._end = 0
        """Invariant: the ids from `_next` to `_end` (not included) belong to this broker and are
        unused."""
        self._reserve: asyncio.Task[ProducerIdBlock] | None = None

    async def next_id(self) -> int:
        """Return an id that no broker has returned before. Raises BrokerError
        COORDINATOR_NOT_AVAILABLE while no block can be taken from ZooKeeper."""
        while self._next == self._end:
            await self._begin_next_block()
        given = self._next
        self._next += 1
        if self._end - self._next < RESERVE_BELOW:
            self._start_reserving()
        return given

    async def close(self) -> None:
        """Cancel the task. Idempotent."""
        task, self._reserve = self._reserve, None
        if task is not None:
            await cancel_and_wait(task)

    async def _begin_next_block(self) -> None:
        task = self._start_reserving()
        try:
            block = await asyncio.shield(task)
        except (CoordError, MalformedNode) as error:
            if self._reserve is task:
                self._reserve = None
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"this broker could not get producer ids from ZooKeeper; retry ({error!r})",
            ) from error
        if self._reserve is task:
            self._reserve = None
            self._next, self._end = block.first, block.last + 1

    def _start_reserving(self) -> asyncio.Task[ProducerIdBlock]:
        if self._reserve is None or _has_failed(self._reserve):
            self._reserve = asyncio.create_task(self._take_block(), name="producer-id-block")
        return self._reserve

    async def _take_block(self) -> ProducerIdBlock:
        failures: list[CoordError] = []
        while len(failures) < ATTEMPTS_MAX:
            try:
                return await self._try_to_take_block()
            except (BadVersion, NodeExists) as error:
                failures.append(error)
            except ConnectionLoss as error:
                # It is unknown whether the block was taken. Taking another block is always correct.
                failures.append(error)
                await asyncio.sleep(PAUSE_S)
            log.info(
                "producer id block not taken attempt=%d reason=%r", len(failures), failures[-1]
            )
        raise failures[-1]

    async def _try_to_take_block(self) -> ProducerIdBlock:
        path = paths.PRODUCER_ID_BLOCK
        try:
            data, stat = await self._coord.get(path)
        except NoNode:
            await self._coord.create(path)
            data, stat = await self._coord.get(path)
        latest = schemas.decode_producer_id_block(path, data)
        first = 0 if latest is None else latest.last + 1
        if first > PRODUCER_ID_MAX - BLOCK_SIZE:
            raise BrokerError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "the cluster has allocated all producer ids"
            )
        block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1)
        await self._coord.set(path, schemas.encode_producer_id_block(block), stat.version)
        log.info("producer id block taken first=%d last=%d", block.first, block.last)
        return block


def _has_failed(task: asyncio.Task[ProducerIdBlock]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
