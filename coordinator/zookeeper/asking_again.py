"""Repeats what ZooKeeper did not answer, or refused because another client changed the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pybroker.errors import BadVersion, ConnectionLoss, NodeExists, SessionExpired
from pybroker.ports import Clock

log = logging.getLogger(__name__)
_RETRY_S: Final = 0.2
_ATTEMPTS_MAX: Final = 10
"""Leaders and the controller may change a node meanwhile."""
T = TypeVar("T")


async def asked_again(
    what: str, ask: Callable[[], Awaitable[T]], *, clock: Clock, limit_s: float
) -> T:
    """Return the result of `ask`, a step of the broker's start. After ConnectionLoss or
    SessionExpired `ask` is called again, so it must be repeatable. Raises the last of these errors
    when `limit_s` have passed since the first one; raises any other error at once."""
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


async def tried_again(attempt: Callable[[], Awaitable[T]]) -> T:
    """For a conditional write: give the result of `attempt`, which reads and then writes. It is
    called again after a change by others, and after a lost reply, which proves nothing. Raises the
    error of the last attempt; any other error at once."""
    for number in range(1, _ATTEMPTS_MAX):
        try:
            return await attempt()
        except (BadVersion, NodeExists, ConnectionLoss):
            await asyncio.sleep(_RETRY_S if number > 1 else 0)
    return await attempt()
