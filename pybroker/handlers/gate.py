"""Clients who come while the broker is still being told of the cluster wait for that.

The controller may be another broker, and must be able to reach this one; so connections are
accepted before there is an answer for clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pybroker.handlers.dispatch import Answer
from pybroker.wire.api import BETWEEN_BROKERS, ApiKey

Answering = Callable[[memoryview, str, str], Answer | Awaitable[Answer]]

_PASSES: Final = frozenset({*map(int, BETWEEN_BROKERS), int(ApiKey.API_VERSIONS)})


class Gate:
    """Answers as `answering` does, most requests only when `open` was called."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let everybody through. Idempotent."""
        self._opened.set()

    def answer(
        self, frame: memoryview, listener: str, peer_host: str
    ) -> Answer | Awaitable[Answer]:
        """Raises what `answering` raises; so does the awaitable."""
        key = int.from_bytes(frame[:2], "big", signed=True)
        if key in _PASSES or self._opened.is_set():
            return self._answering(frame, listener, peer_host)
        return self._answer_later(frame, listener, peer_host)

    async def _answer_later(self, frame: memoryview, listener: str, peer_host: str) -> Answer:
        await self._opened.wait()
        answer = self._answering(frame, listener, peer_host)
        return await answer if isinstance(answer, Awaitable) else answer
