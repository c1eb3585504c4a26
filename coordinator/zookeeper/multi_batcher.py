"""Sends the writes of many callers in one multi, because a ZooKeeper request costs far more than
one more operation in a multi.

A joint multi applies all of its writes or none. If ZooKeeper refuses a joint multi, each write is
sent again alone. If the reply is lost, each caller gets ConnectionLoss.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from pybroker.background import BackgroundTask
from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.zookeeper.limits import operation_bytes
from pybroker.errors import ConnectionLoss, MultiFailed
from pybroker.ports import CheckOp, CoordOp, OpResult

log = logging.getLogger(__name__)

OPERATIONS_PER_MULTI_MAX: Final = 1000
BYTES_PER_MULTI_MAX: Final = 256 * 1024


class Multis(Protocol):
    """A sender of multis: a session, a batcher, or a wrapper that adds a fence check."""

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """Send `ops` in one multi. The results and the errors are those of `Coord.multi`."""


async def multi_under(
    multis: Multis, checks: Sequence[CheckOp], ops: Sequence[CoordOp]
) -> list[OpResult]:
    """Apply `ops` in one multi if all `checks` succeed. Return the results of `ops`. Raises the
    errors of `Coord.multi`. The index in MultiFailed is the position in `ops`, or negative for a
    failed check."""
    try:
        return (await multis.multi([*checks, *ops]))[len(checks) :]
    except MultiFailed as error:
        raise MultiFailed(error.index - len(checks), error.cause) from error


class _Write(NamedTuple):
    ops: Sequence[CoordOp]
    is_wanted: Callable[[], bool]
    checks: Sequence[CheckOp]
    done: asyncio.Future[list[OpResult]]


def _always() -> bool:
    return True


class MultiBatcher:
    """Sends the writes of its callers in joint multis, in the order in which the callers submitted
    them. Owns its tasks, which end when no write is pending."""

    def __init__(
        self,
        multis: Multis,
        *,
        at_once: int = 2,
        operations_max: int = OPERATIONS_PER_MULTI_MAX,
    ) -> None:
        """`at_once`: the maximum number of multis under way. It must be 1 if later writes depend
        on earlier writes. `operations_max`: the maximum number of operations in a multi. Pass a
        lower number if ZooKeeper often refuses multis, because refused writes are sent again one
        by one."""
        self._multis = multis
        self._operations_max = operations_max
        self._queue: deque[_Write] = deque()
        self._lanes = [BackgroundTask("multis") for _ in range(at_once)]

    async def multi(
        self,
        ops: Sequence[CoordOp],
        is_wanted: Callable[[], bool] = _always,
        checks: Sequence[CheckOp] = (),
    ) -> list[OpResult]:
        """Apply `ops` if all `checks` succeed. The results and the errors are those of
        `multi_under`. The batcher may send several calls in one multi of ZooKeeper. This multi
        makes the checks of all calls before the ops. So no call may change a node that is in the
        `checks` of any call.

        A call that has been cancelled is not sent. If `is_wanted` returns False right before an
        attempt, the call is not sent and raises ConnectionLoss.
        """
        return await self.submit(ops, is_wanted, checks)

    def submit(
        self,
        ops: Sequence[CoordOp],
        is_wanted: Callable[[], bool] = _always,
        checks: Sequence[CheckOp] = (),
    ) -> asyncio.Future[list[OpResult]]:
        """Do the same as `multi`, but return at once, with a future of the results."""
        write = _Write(ops, is_wanted, checks, asyncio.get_running_loop().create_future())
        self._queue.append(write)
        idle = (lane for lane in self._lanes if not lane.runs)
        next(idle, self._lanes[0]).start(self._run)
        return write.done

    async def _run(self) -> None:
        while self._queue:
            await self._send(self._take())

    def _take(self) -> list[_Write]:
        """Remove and return waiting writes: at least one, and as many as fit into one multi."""
        writes: list[_Write] = []
        operations = size = 0
        while self._queue:
            write = self._queue[0]
            operations += len(write.ops)
            size += sum(map(operation_bytes, [*write.checks, *write.ops]))
            is_full = operations > self._operations_max or size > BYTES_PER_MULTI_MAX
            if writes and is_full:
                break
            writes.append(self._queue.popleft())
        return writes

    async def _send(self, writes: Sequence[_Write]) -> None:
        unwanted = ConnectionLoss("the write was not sent: its caller withdrew it (`is_wanted`)")
        _fail([each for each in writes if not each.is_wanted()], unwanted)
        writes = [each for each in writes if not each.done.done()]
        if not writes:
            return
        checks = list(dict.fromkeys(check for each in writes for check in each.checks))
        ops = [op for each in writes for op in each.ops]
        try:
            results = iter(await multi_under(self._multis, checks, ops))
        except MultiFailed as error:
            if len(writes) > 1:
                log.info(
                    "multi refused writes=%d reason=%r: the broker sends each write alone",
                    len(writes),
                    error,
                )
                await bounded_gather(self._send, [[each] for each in writes])
            else:
                _fail(writes, error)
        except Exception as error:
            _fail(writes, error)
        else:
            for each in writes:
                own = list(islice(results, len(each.ops)))
                if not each.done.done():
                    each.done.set_result(own)


def _fail(writes: Sequence[_Write], error: Exception) -> None:
    for write in writes:
        if not write.done.done():
            write.done.set_exception(error)
