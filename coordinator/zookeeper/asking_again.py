"""Repeats a step of the broker's start after a lost ZooKeeper connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pybroker.errors import ConnectionLoss, SessionExpired
from pybroker.ports import Clock

log = logging.getLogger(__name__)
_RETRY_S: Final = 0.2
T = TypeVar("T")


async def asked_again(
    what: str, ask: Callable[[], Awaitable[T]], *, clock: Clock, limit_s: float
) -> T:
    """Return the result of `ask`. After ConnectionLoss or SessionExpired `ask` is called again, so
    it must be repeatable. Raises the last of these errors when `limit_s` have passed since the
    first one; raises any other error at once."""
    deadline: float | None = None
    while True:
        try:
            return await ask()
        except (ConnectionLoss, SessionExpired) as error:
            now = clock.monotonic()
            if deadline is None:
                deadline = now + limit_s
                log.warning(
                    "zookeeper_connection_lost_at_start step=%s limit_s=%g error=%r",
                    what,
                    limit_s,
                    error,
                )
            if now >= deadline:
                raise
        await asyncio.sleep(_RETRY_S)
