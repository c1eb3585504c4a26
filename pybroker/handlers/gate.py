"""The gate: holds requests back until the starting broker can answer them. Even the requests of
`BETWEEN_BROKERS` wait for the registration: without a broker epoch, the broker could not refuse a
request meant for its previous process."""

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
        """If the gate is open for the request, pass the request on to `answering`, and return the
        result. Otherwise hold the request back, and return an awaitable of the response."""
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
