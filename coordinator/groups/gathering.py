"""Many requests to ZooKeeper at once, but not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE_MAX: Final = 100
"""So that what others ask of the same session does not wait behind thousands of requests."""


async def for_each(function: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """The results in the order of `items`. When one fails nothing new is begun, what is under way
    is waited for, and then its error is raised."""
    if len(items) == 1:
        return [await function(items[0])]
    results: dict[int, R] = {}
    remaining = iter(enumerate(items))
    failed: list[Exception] = []

    async def work() -> None:
        for index, item in remaining:
            if failed:
                return
            try:
                results[index] = await function(item)
            except Exception as error:
                failed.append(error)

    workers = [asyncio.ensure_future(work()) for _ in range(min(AT_ONCE_MAX, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    if failed:
        raise failed[0]
    return [results[index] for index in range(len(items))]
