"""Clients who come while the broker is still being told of the cluster wait for that.

The controller may be another broker, and must be able to reach this one; so connections are
accepted before there is an answer for clients. Before the broker is registered even the controller
waits: what it says then is meant for the process before this one, and only by the epoch of the
registration it can be told apart.
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
    """Answers as `answering` does; brokers only when `let_brokers_in` was called, clients only when
    `open` was."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._registered = asyncio.Event()
        self._opened = asyncio.Event()

    def let_brokers_in(self) -> None:
        """The broker is registered, and knows its epoch. Idempotent."""
        self._registered.set()

    def open(self) -> None:
        """Let everybody through. Idempotent."""
        self._registered.set()
        self._opened.set()

    def answer(
        self, frame: memoryview, listener: str, peer_host: str
    ) -> Answer | Awaitable[Answer]:
        """Raises what `answering` raises; so does the awaitable."""
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
