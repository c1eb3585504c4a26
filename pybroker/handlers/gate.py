"""The gate: holds requests back until the starting broker can answer them. Requests of clients wait
until the broker has the metadata of the cluster.

The controller must be able to reach the starting broker, so the broker accepts connections before
it can answer clients. Requests of the controller wait until the broker is registered. Such a
request may be meant for the previous process of this broker. Only the broker epoch, which this
process learns when it registers, shows that. ApiVersions never waits.
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
    """Passes requests on to `answering`. Requests that brokers send wait for `let_brokers_in`,
    requests of clients wait for `open`."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._registered = asyncio.Event()
        self._opened = asyncio.Event()

    def let_brokers_in(self) -> None:
        """From now on pass on the requests that brokers send. The caller calls this when this
        broker is registered and knows its broker epoch. Idempotent."""
        self._registered.set()

    def open(self) -> None:
        """Pass on all requests from now on. Idempotent."""
        self._registered.set()
        self._opened.set()

    def answer(
        self, frame: memoryview, listener: str, peer_host: str
    ) -> Answer | Awaitable[Answer]:
        """Pass the request to the `answering` function of the gate, and return its response. If
        the request has to wait at the gate, return an awaitable of the response. Errors of
        `answering` are raised here or by the awaitable."""
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
