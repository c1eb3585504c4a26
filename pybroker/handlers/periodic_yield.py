"""Handlers of large requests yield to the event loop after a number of items."""

from __future__ import annotations

import asyncio
from typing import Final

ITEMS_PER_YIELD: Final = 1000
"""The number of items, such as partitions, after which a handler yields. Looking up this many
partitions takes some 5 ms."""


class PeriodicYield:
    """Counts the items of one request. The handler awaits `after_item()` after each item, which
    yields to the event loop after every ITEMS_PER_YIELD items."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = 0

    async def after_item(self) -> None:
        self._items += 1
        if self._items % ITEMS_PER_YIELD == 0:
            await asyncio.sleep(0)
