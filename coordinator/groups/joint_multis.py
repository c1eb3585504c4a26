"""One multi for the writes of many shards: a request to ZooKeeper costs far more than an operation
in it, and where groups are spread over fifty partitions each would make its own.

Every part brings its own check of its own fence, so all that holds for a multi of one shard holds
here: it is applied under that fence or not at all. When a joint one is refused, each part is asked
for alone and hears why.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from pybroker.coordinator.groups.gathering import for_each
from pybroker.coordinator.zookeeper.limits import operation_bytes
from pybroker.errors import MultiFailed
from pybroker.ports import Coord, CoordOp

OPERATIONS_PER_MULTI_MAX: Final = 1000
BYTES_PER_MULTI_MAX: Final = 256 * 1024
AT_ONCE_MAX: Final = 2


class _Part(NamedTuple):
    """What one caller asked for."""

    ops: Sequence[CoordOp]
    done: asyncio.Future[None]


class JointMultis:
    """Of one session. AT_ONCE_MAX multis are under way at a time, so that ZooKeeper and this broker
    need not wait for each other; each takes along what was asked for meanwhile. A shard asks for
    one thing after the other, so they may be answered in any order. Owns its tasks, which end when
    nothing is asked for."""

    def __init__(self, coord: Coord) -> None:
        self._coord = coord
        self._queue: deque[_Part] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        """The tasks that will look at the queue again."""

    async def multi(self, ops: Sequence[CoordOp]) -> None:
        """As `Coord.multi`. Who is cancelled before it was sent has asked for nothing."""
        part = _Part(ops, asyncio.get_running_loop().create_future())
        self._queue.append(part)
        if self._running < AT_ONCE_MAX:
            self._running += 1
            task = asyncio.ensure_future(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await part.done

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._send(self._take())
        except asyncio.CancelledError:
            for part in self._queue:
                part.done.cancel()
            self._queue.clear()
            raise
        finally:
            self._running -= 1

    def _take(self) -> list[_Part]:
        """As many as go into one multi, and at least one."""
        parts: list[_Part] = []
        operations = size = 0
        while self._queue:
            part = self._queue[0]
            if part.done.done():
                self._queue.popleft()
                continue
            operations += len(part.ops)
            size += sum(map(operation_bytes, part.ops))
            is_full = operations > OPERATIONS_PER_MULTI_MAX or size > BYTES_PER_MULTI_MAX
            if parts and is_full:
                break
            parts.append(self._queue.popleft())
        return parts

    async def _send(self, parts: list[_Part]) -> None:
        if len(parts) <= 1:
            await for_each(self._send_alone, parts)
            return
        try:
            await self._coord.multi([op for part in parts for op in part.ops])
        except MultiFailed:
            await for_each(self._send_alone, parts)
        except Exception as error:
            for part in parts:
                _fail(part, error)
        else:
            for part in parts:
                _succeed(part)

    async def _send_alone(self, part: _Part) -> None:
        if part.done.done():
            return
        try:
            await self._coord.multi(part.ops)
        except Exception as error:
            _fail(part, error)
        else:
            _succeed(part)


def _succeed(part: _Part) -> None:
    if not part.done.done():
        part.done.set_result(None)


def _fail(part: _Part, error: Exception) -> None:
    if not part.done.done():
        part.done.set_exception(error)
