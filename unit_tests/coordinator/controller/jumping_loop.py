"""An event loop whose time jumps to the next timer when nobody has anything to do: minutes pass at
once, and every run is the same. For tests without sockets, threads and processes."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its clock begins at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self.now


class _Impatient(selectors.DefaultSelector):
    """Never waits: the loop's clock goes on by as much as it should have."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing will ever happen")
        self._loop.now += max(timeout, 0.0)
        return super().select(0)
