"""Much work in small turns: what a controller decides for thousands of partitions must not hold up
the event loop, on which the same broker serves its clients.

Between two turns other tasks run, but never another handler of the controller: those take turns
with each other as wholes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

ITEMS_PER_YIELD: Final = 250
"""A decision and its text take some ten microseconds."""


async def yield_every(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a pause for others after every ITEMS_PER_YIELD."""
    for number, item in enumerate(items, 1):
        yield item
        if number % ITEMS_PER_YIELD == 0:
            await asyncio.sleep(0)
