"""Runs many calls concurrently, but only a limited number at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE_MAX: Final = 100
"""The maximum number of calls at the same time. It is small, so that other requests in the same
ZooKeeper session do not wait behind thousands of calls."""


async def bounded_gather(
    function: Callable[[T], Awaitable[R]], items: Sequence[T], at_once: int = AT_ONCE_MAX
) -> list[R]:
    """Return the results in the order of `items`, with at most `at_once` calls at a time. After an
    error, start no further call. Raise the error when the calls in progress have ended."""
    if len(items) == 1:
        return [await function(items[0])]
    results: dict[int, R] = {}
    waiting = deque(enumerate(items))

    async def work() -> None:
        while waiting:
            index, item = waiting.popleft()
            try:
                results[index] = await function(item)
            except BaseException:
                waiting.clear()
                raise

    workers = (work() for _ in range(min(at_once, len(items))))
    for failure in await asyncio.gather(*workers, return_exceptions=True):
        if failure is not None:
            raise failure
    return [results[index] for index in range(len(items))]
