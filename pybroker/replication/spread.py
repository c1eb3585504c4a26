"""Work that waits for the disk, spread over a few threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pybroker.errors import BrokerError, PybrokerError, StorageError
from pybroker.ports import Blocking
from pybroker.storage.log import Log

T = TypeVar("T")
R = TypeVar("R")
_THREADS: Final = 10


async def spread(blocking: Blocking, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return `work` of each item, in their order. A few threads have a share of the items each: the
    disk serves several requests at a time."""
    share = -(-len(items) // _THREADS) or 1

    def some(start: int) -> list[R]:
        return [work(item) for item in items[start : start + share]]

    starts = range(0, len(items), share)
    parts = await asyncio.gather(*(blocking.run(some, start) for start in starts))
    return [result for part in parts for result in part]


async def persist_epochs(blocking: Blocking, logs: Sequence[Log]) -> list[PybrokerError | None]:
    """Make the new leader epochs of these logs durable, so that no append has to wait for that.
    Return the error of each log, None for success."""
    return await spread(blocking, _persist_epochs, logs)


def _persist_epochs(log: Log) -> PybrokerError | None:
    try:
        log.persist_epochs()
    except (BrokerError, StorageError) as error:
        return error
    return None
