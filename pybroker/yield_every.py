"""Long loops that yield to other tasks: the controller decides for thousands of partitions on the
event loop on which the same broker serves its clients.

Another handler of the controller never runs during such a pause: handlers run one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

ITEMS_PER_YIELD: Final = 250
"""The number of items between two yields. A decision and its encoding take about ten
microseconds."""


async def yield_every(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run after every ITEMS_PER_YIELD of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % ITEMS_PER_YIELD == 0:
            await asyncio.sleep(0)
