"""Lets a long loop yield to other tasks, because the broker serves all clients on one event
loop. Even if a loop of the controller yields, the controller handles no other event before the
loop ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

ITEMS_PER_YIELD: Final = 250
"""The number of items after which the loop yields. Deciding about one partition, or looking it
up, takes about ten microseconds."""


async def yield_every(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items one by one, and let other tasks run after every ITEMS_PER_YIELD items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % ITEMS_PER_YIELD == 0:
            await asyncio.sleep(0)
