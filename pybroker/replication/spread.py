"""Runs disk work for many logs in a few threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pybroker.errors import BrokerError
from pybroker.ports import Blocking
from pybroker.storage.log import Log

T = TypeVar("T")
R = TypeVar("R")
_THREADS: Final = 10


async def spread(blocking: Blocking, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of `work(item)` in the order of `items`, computed in a few threads."""
    share = -(-len(items) // _THREADS) or 1

    def some(start: int) -> list[R]:
        return [work(item) for item in items[start : start + share]]

    starts = range(0, len(items), share)
    parts = await asyncio.gather(*(blocking.run(some, start) for start in starts))
    return [result for part in parts for result in part]


async def persist_epochs(blocking: Blocking, logs: Sequence[Log]) -> None:
    """Write the new leader epochs of these logs to disk. Suppresses errors: the next append repeats
    a failed write."""
    await spread(blocking, _persist_epochs, logs)


def _persist_epochs(log: Log) -> None:
    with contextlib.suppress(BrokerError):
        log.persist_epochs()
