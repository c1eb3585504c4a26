"""The gate: holds requests back until the starting broker can answer them.

The requests of `BETWEEN_BROKERS` wait until the broker is registered. The broker then knows its
broker epoch, and can refuse a controller's request that was meant for the broker's previous
process. All other requests wait until the broker has the metadata of the cluster. ApiVersions never
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pybroker.handlers.dispatch import Answer
from pybroker.wire.api import BETWEEN_BROKERS, ApiKey

Answering = Callable[[memoryview, str, str], Answer | Awaitable[Answer]]

_FOR_BROKERS: Final = frozenset(map(int, BETWEEN_BROKERS))


class Gate:
    """Passes requests on to `answering`. The requests of `BETWEEN_BROKERS` wait until
    `let_brokers_in` is called, all other requests until `open` is called."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._registered = asyncio.Event()
        self._opened = asyncio.Event()

    def let_brokers_in(self) -> None:
        """Pass on the requests of `BETWEEN_BROKERS` from now on. Idempotent."""
        self._registered.set()

    def open(self) -> None:
        """Pass on all requests from now on. Idempotent."""
        self._registered.set()
        self._opened.set()

    def answer(
        self, frame: memoryview, listener: str, peer_host: str
    ) -> Answer | Awaitable[Answer]:
        """Pass the request to `answering`, and return its result. If the request has to wait,
        return an awaitable of the response. Errors of `answering` are raised here or by the
        awaitable."""
        key = int.from_bytes(frame[:2], "big", signed=True)
        awaited = self._registered if key in _FOR_BROKERS else self._opened
        if key == ApiKey.API_VERSIONS or awaited.is_set():
            return self._answering(frame, listener, peer_host)
        return self._answer_later(awaited, frame, listener, peer_host)

    async def _answer_later(
        self, awaited: asyncio.Event, frame: memoryview, listener: str, peer_host: str
    ) -> Answer:
        await awaited.wait()
        answer = self._answering(frame, listener, peer_host)
        return await answer if isinstance(answer, Awaitable) else answer
