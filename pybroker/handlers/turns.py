"""Large requests give way: after so many items the other connections have their turn."""

from __future__ import annotations

import asyncio
from typing import Final

ITEMS_PER_TURN_MAX: Final = 1000
"""Looking up that many partitions takes some 5 ms."""


class Turns:
    """One a request: `await turns.item()` after each item."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = 0

    async def item(self) -> None:
        self._items += 1
        if self._items % ITEMS_PER_TURN_MAX == 0:
            await asyncio.sleep(0)
